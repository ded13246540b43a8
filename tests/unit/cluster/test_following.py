"""Following the logs of a cluster; the engines of its nodes are stand-ins."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.program import Run, run
from support.two_nodes import Two, call, two

from imagefactory.cluster import following
from imagefactory.errors import SetupError, fail
from imagefactory.system import ui
from imagefactory.system.engine import Engine

__all__ = ["call", "run", "two"]


@pytest.mark.programs
def test_followed_logs_go_on_until_all_containers_have_ended(two: Two, call: Run) -> None:
    two.up()
    two.head.writes += "; echo; echo oops >&2; printf end"
    done = call("logs", "--follow", "--tail", "7")
    assert done.code == 0
    head = [line for line in done.out.splitlines() if line.startswith("spark1")]
    assert head == ["spark1 | last 7", "spark1 | ", "spark1 | oops", "spark1 | end"]
    assert "spark2 | last 7" in done.out.splitlines()
    assert "spark2: spark-1 does not run" in done.err
    one = call("logs", "--follow", "--node", "spark2")
    assert one.out == "spark2 | last 50\n"
    since = call("logs", "--follow", "--node", "spark2", "--since", "5m")
    assert since.out == "spark2 | last None5m\n"


@pytest.mark.programs
def test_nodes_are_followed_at_the_same_time(two: Two, call: Run, tmp_path: Path) -> None:
    """The head waits for the worker, which waits for the head."""
    two.up()
    wait = "until [ -e {0} ]; do sleep 0.01; done"
    one, other = tmp_path / "one", tmp_path / "other"
    two.head.writes = f"touch {one}; {wait.format(other)}; echo met"
    two.worker.writes = f"touch {other}; {wait.format(one)}; echo met"
    assert sorted(call("logs", "--follow").out.splitlines()) == ["spark1 | met", "spark2 | met"]


@pytest.mark.programs
def test_a_node_that_cannot_be_followed_is_named_and_the_others_go_on(two: Two, call: Run) -> None:
    two.up()
    two.head.off = True
    off = call("logs", "--follow")
    assert (off.code, off.out) == (3, "spark2 | last 50\n")
    assert off.err.index("warning: spark1: docker: No route") < off.err.index("spark2: spark-1")
    two.head.off = False
    two.head.writes = "echo broken pipe; exit 1"
    broken = call("logs", "--follow")
    assert (broken.code, "spark2 | last 50" in broken.out) == (3, True)
    assert "error: spark1: docker logs: broken pipe [node-unreachable]" in broken.err
    two.head.found.clear()
    absent = call("logs", "--follow")
    assert (absent.code, absent.out) == (0, "spark2 | last 50\n")
    assert "spark1: there is no container spark-0" in absent.err


@pytest.mark.programs
def test_a_node_that_falls_silent_is_named_and_the_others_go_on(
    two: Two, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As after a power cut: the connection of its reader does not break."""
    two.up()
    two.worker.writes = f"touch {tmp_path}/waits; exec sleep 60"
    two.head.writes = f"until [ -e {tmp_path}/off ]; do sleep 0.01; done; echo on"
    monkeypatch.setattr(following, "ASK", 0.05)

    def engine_of(host: str) -> Engine:
        if host == "spark2" and (tmp_path / "waits").exists():
            (tmp_path / "off").touch()
            raise fail(SetupError, "node-unreachable", "spark2: Connection timed out")
        return two.of(host)

    shown: list[str] = []
    errors = following.follow(
        two.members, engine_of, last=1, show=lambda m, text: shown.append(f"{m.node.host} {text}")
    )
    assert shown == ["spark1 on"]
    assert [error.problems[0].what for error in errors] == ["spark2: Connection timed out"]
    assert "warning: spark2: Connection timed out" in capsys.readouterr().err


@pytest.mark.programs
@pytest.mark.parametrize(("stop", "code"), [(KeyboardInterrupt(), 130), (SystemExit(1), 1)])
def test_what_ends_following_ends_all_readers(
    two: Two,
    call: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stop: BaseException,
    code: int,
) -> None:
    """Ctrl-C, or nobody who reads; also if a reader writes faster than its lines are shown."""
    two.up()
    two.head.writes = f"echo $$ > {tmp_path}/head; exec yes"
    ready = f"until [ -s {tmp_path}/head ]; do sleep 0.01; done"
    two.worker.writes = f"echo $$ > {tmp_path}/worker; {ready}; echo up; exec sleep 60"

    def line(text: str) -> None:
        if text.startswith("spark2"):
            raise stop

    monkeypatch.setattr(ui, "line", line)
    done = call("logs", "--follow")
    assert (done.code, "Traceback" in done.err) == (code, False)
    for name in ("head", "worker"):
        pid = int((tmp_path / name).read_text())
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
