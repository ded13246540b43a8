"""Starting a cluster, watching it and stopping it; the engines of the nodes are stand-ins."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from subprocess import Popen

import pytest
from support.program import Run, run

from imagefactory.cluster import cluster as clusters
from imagefactory.cluster import declaration, following, running
from imagefactory.cluster.cluster import Member
from imagefactory.commands import cluster as command
from imagefactory.errors import CheckFailedError, SetupError, fail
from imagefactory.examples import examples
from imagefactory.system import shell, ui
from imagefactory.system.engine import Engine, ImageInfo, Service

__all__ = ["run"]
REF = "imagefactory/vllm:gb10"
IMAGE = ImageInfo(
    ref=REF,
    digest="sha256:a",
    layers=("sha256:1",),
    platform="linux/arm64",
    labels={},
    env={},
    size=1,
)


class Node(Engine):
    """An engine that knows one image; ``later`` changes a container each time it is looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.image: ImageInfo | None = IMAGE
        self.found: dict[str, Service] = {}
        self.done: list[str] = []
        self.later: Callable[[Service], Service | None] = lambda one: replace(one, health="healthy")
        self.off = False
        self.writes = "echo last $1"

    def find_images(self, refs: Iterable[str]) -> dict[str, ImageInfo]:
        self._answer()
        return {ref: self.image for ref in refs if self.image and ref == REF}

    def services(self, label: str) -> list[Service]:
        self._answer()
        name, _, value = label.partition("=")
        return [one for one in self.found.values() if one.labels.get(name) == value]

    def service(self, name: str) -> Service | None:
        self._answer()
        if found := self.found.get(name):
            changed = self.later(found)
            self.found |= {name: changed} if changed else {}
            return changed
        return None

    def start_service(self, arguments: Sequence[str]) -> str:
        words = list(arguments)
        name = words[words.index("--name") + 1]
        labels = [words[n + 1] for n, word in enumerate(words) if word == "--label"]
        if name in self.found:
            raise fail(CheckFailedError, "container-name", "docker: the name is taken")
        self.done.append(f"start {name}")
        self.found[name] = container(name, dict(label.split("=", 1) for label in labels))
        return self.found[name].id

    def fill_volume(self, name: str, image: str, files: Mapping[str, str]) -> None:
        assert image == REF
        self.done.append(f"fill {name} with {' '.join(files)}")

    def stop_service(self, container: str) -> None:
        self.done.append(f"stop {container}")
        self.found[container] = replace(self.found[container], state="exited", code=0)

    def remove_service(self, container: str) -> None:
        self.done.append(f"remove {container}")
        del self.found[container]

    def service_log(self, container: str, *, last: int) -> str:
        self._answer()
        lines = [f"line 1 of {container}", "ValueError: planted"] if container in self.found else []
        return "\n".join(lines[-last:])

    def follow_service_log(
        self, container: str, *, last: int
    ) -> AbstractContextManager[Popen[str]]:
        assert container in self.found
        return shell.stream(["sh", "-c", self.writes, "sh", str(last)], quiet=True)

    def _answer(self) -> None:
        if self.off:
            raise fail(SetupError, "engine-failed", "docker: No route to host")


def container(name: str, labels: dict[str, str]) -> Service:
    return Service(
        id=name,
        name=name,
        labels=labels,
        image="sha256:a",
        state="running",
        code=0,
        out_of_memory=False,
        health="starting",
        since="2026-11-22T10:00:00.5Z",
    )


def ended(
    code: int, since: str = "2026-11-22T11", *, killed: bool = False
) -> Callable[[Service], Service]:
    return lambda one: replace(one, state="exited", code=code, since=since, out_of_memory=killed)


class Two:
    """Two nodes and their engines."""

    def __init__(self, members: Sequence[Member]) -> None:
        self.members = members
        self.nodes = {member.node.host: Node() for member in members}
        self.head, self.worker = self.nodes.values()

    def of(self, host: str) -> Engine:
        return self.nodes[host]

    def up(self, timeout: float = 60) -> list[running.Seen]:
        return running.up(self.members, self.of, timeout=timeout)

    def done(self) -> list[list[str]]:
        """What each engine has done since the last call."""
        found = [node.done[:] for node in self.nodes.values()]
        for node in self.nodes.values():
            node.done.clear()
        return found


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Two:
    monkeypatch.setattr(running, "POLL", 0)
    monkeypatch.setattr(running, "REPORT", 0)
    path = tmp_path / "cluster.yaml"
    path.write_text(examples.cluster())
    return Two(clusters.members(declaration.load(path), REF))


def test_up_starts_all_containers_and_waits_until_the_head_is_healthy(
    two: Two, capsys: pytest.CaptureFixture[str]
) -> None:
    healths = iter(["starting", "unhealthy", "healthy"])
    two.head.later = lambda one: replace(one, health=next(healths))
    two.worker.later = lambda one: one
    seen = two.up()
    assert [one.good for one in seen] == [True, True]
    assert next(healths, None) is None
    assert two.done() == [["start spark-0"], ["start spark-1"]]
    assert "spark1: ValueError: planted" in capsys.readouterr().err


def test_up_leaves_alone_what_runs_as_declared_and_restarts_all_that_does_not(two: Two) -> None:
    two.up()
    two.done()
    two.up()
    assert two.done() == [[], []]

    two.worker.found["spark-1"] = ended(1)(two.worker.found["spark-1"])
    two.up()
    both = [["remove spark-0", "start spark-0"], ["remove spark-1", "start spark-1"]]
    assert two.done() == both

    two.members = [
        replace(one, launch=replace(one.launch, memory_bytes=1 << 30)) for one in two.members
    ]
    two.up()
    assert two.done() == both

    for node in two.nodes.values():  # the tag has moved
        node.image = replace(IMAGE, digest="sha256:b")
    two.up()
    assert two.done() == both


def test_a_former_rank_is_removed_and_containers_of_others_stay(two: Two) -> None:
    label = {"io.imagefactory.cluster": "spark"}
    for one in (container("spark-7", label), container("mine", label), container("spark-8", {})):
        two.worker.found[one.name] = one
    two.up()
    assert two.done()[1] == ["remove spark-7", "start spark-1"]
    assert {*two.worker.found} == {"spark-1", "mine", "spark-8"}


@pytest.mark.parametrize(
    ("later", "said"),
    [
        (ended(3), "spark2: spark-1 (worker) ended with exit code 3"),
        (ended(137, killed=True), "exit code 137, out of memory"),
        (lambda _: None, "spark2: spark-1 (worker) was removed"),
    ],
)
def test_a_worker_that_ends_is_shown_with_its_last_lines_and_the_head_is_stopped(
    two: Two, later: Callable[[Service], Service | None], said: str
) -> None:
    two.head.later = lambda one: one
    two.worker.later = later
    with pytest.raises(CheckFailedError) as caught:
        two.up()
    (problem,) = caught.value.problems
    assert said in problem.what
    assert ("planted" in problem.detail) == ("removed" not in said)
    assert two.done()[0] == ["start spark-0", "stop spark-0"]


def test_of_two_containers_that_end_the_first_is_shown_first(two: Two) -> None:
    two.head.later, two.worker.later = ended(1, "2026-11-22T12"), ended(3, "2026-11-22T11")
    with pytest.raises(CheckFailedError) as caught:
        two.up()
    assert ["spark-1" in one.what for one in caught.value.problems] == [True, False]


def test_a_head_that_takes_too_long_goes_on_loading(two: Two) -> None:
    two.head.later = lambda one: one
    with pytest.raises(CheckFailedError, match="does not serve after 0 s"):
        two.up(timeout=0)
    assert two.done() == [["start spark-0"], ["start spark-1"]]


def test_two_that_start_it_at_once_both_wait_for_it(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second sees nothing, and then finds what the first has started meanwhile."""
    two.up()
    two.done()
    monkeypatch.setattr(Node, "services", lambda *_: [])
    assert two.up()[0].good
    assert two.done() == [[], []]
    two.members = [
        replace(one, launch=replace(one.launch, memory_bytes=1 << 30)) for one in two.members
    ]
    with pytest.raises(CheckFailedError, match="the name is taken"):
        two.up()


def test_an_image_without_a_health_check_is_not_waited_for(
    two: Two, capsys: pytest.CaptureFixture[str]
) -> None:
    two.head.later = lambda one: replace(one, health="")
    two.up()
    assert "has no health check" in capsys.readouterr().err


def test_a_container_that_does_not_start_stops_the_others(two: Two) -> None:
    two.worker.found["spark-1"] = container("spark-1", {})
    with pytest.raises(CheckFailedError, match="spark2: docker: the name is taken"):
        two.up()
    assert two.done() == [["start spark-0", "stop spark-0"], []]


def test_a_node_may_be_away_for_a_moment_but_not_for_long(two: Two) -> None:
    looks = iter(range(100))

    def away(one: Service) -> Service:
        if 1 <= next(looks) < gone:
            raise fail(SetupError, "engine-failed", "docker: No route to host")
        return replace(one, health="healthy")

    two.worker.later = away
    two.head.later = lambda one: one if next(looks) < 4 else replace(one, health="healthy")
    gone = 4
    assert two.up()[0].good
    two.done()
    two.head.later = lambda one: replace(one, health="starting")
    gone = 1000
    with pytest.raises(SetupError, match="spark2: docker: No route to host"):
        two.up()


@pytest.mark.parametrize(
    ("image", "said"),
    [
        (None, "spark2: the engine has no image"),
        (
            replace(IMAGE, layers=("sha256:2",)),
            "spark2: imagefactory/vllm:gb10 has another content",
        ),
    ],
)
def test_nothing_is_started_unless_all_nodes_have_one_image(
    two: Two, image: ImageInfo | None, said: str
) -> None:
    two.worker.image = image
    with pytest.raises(CheckFailedError, match=said):
        two.up()
    assert two.done() == [[], []]


def test_nothing_is_started_unless_all_nodes_answer(two: Two) -> None:
    two.head.off = two.worker.off = True
    with pytest.raises(SetupError) as caught:
        two.up()
    assert [one.code for one in caught.value.problems] == ["node-unreachable"] * 2
    assert two.done() == [[], []]


def test_nodes_get_tuned_kernels_before_their_containers_start(two: Two, tmp_path: Path) -> None:
    declared = declaration.load(tmp_path / "cluster.yaml")
    tunings = clusters.Tunings({"E=8,N=256.json": "{}"})
    two.members = clusters.members(declared, REF, tunings)
    two.up()
    assert two.done()[1] == [f"fill {tunings.volume} with E=8,N=256.json", "start spark-1"]
    two.up()
    assert two.done() == [[], []]
    two.members = clusters.members(declared, REF, clusters.Tunings({"E=8,N=256.json": "[]"}))
    two.up()
    assert two.done()[0][-1] == "start spark-0"


@pytest.fixture
def call(two: Two, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(command, "_engine_of", two.of)
    return lambda *words: run("cluster", *words, cwd=tmp_path)


def test_status_says_what_runs_and_exits_with_what_is_wrong(two: Two, call: Run) -> None:
    two.up()
    good = call("status", "--json")
    assert good.code == 0
    assert json.loads(good.out)["nodes"][1] == {
        "host": "spark2",
        "container": "spark-1",
        "role": "worker",
        "state": "running",
        "health": "healthy",
        "since": "2026-11-22 10:00:00",
    }
    two.head.later = lambda one: replace(one, health="unhealthy")
    assert call("status").code == 1
    two.worker.later = ended(3)
    assert "exited 3" in call("status").out
    two.head.off = True
    off = call("status")
    assert off.code == 3
    assert "unreachable" in off.out
    assert "exited 3" in off.out


def test_logs_are_those_of_all_nodes_or_of_one(two: Two, call: Run) -> None:
    two.up()
    assert call("logs").out.splitlines() == [
        "spark1 | line 1 of spark-0",
        "spark1 | ValueError: planted",
        "spark2 | line 1 of spark-1",
        "spark2 | ValueError: planted",
    ]
    assert call("logs", "--node", "spark2", "--last", "1").out == "spark2 | ValueError: planted\n"
    assert call("logs", "--node", "spark9").code == 2
    two.head.off = True
    off = call("logs")
    assert (off.code, "spark2 | line 1" in off.out) == (3, True)


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


def test_a_node_that_was_away_is_reached_first_when_it_is_looked_at_again(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    two.up()
    two.done()
    asked: list[str] = []
    looks = iter([fail(SetupError, "engine-failed", "docker: timed out"), None])

    def of(host: str) -> Engine:
        asked.append(host)
        return two.nodes[host]

    def later(one: Service) -> Service:
        if error := next(looks, None):
            raise error
        return one

    monkeypatch.setattr(two, "of", of)
    two.worker.later = later
    assert two.up()[1].good
    assert sorted(asked) == ["spark1"] * 2 + ["spark2"] * 2


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


def test_down_removes_what_it_reaches_after_it_had_time_to_end(two: Two, call: Run) -> None:
    two.up()
    two.done()
    two.worker.off = True
    off = call("down", "--json")
    assert off.code == 3
    assert json.loads(off.out)["removed"] == {"spark1": 1}
    assert two.done() == [["stop spark-0", "remove spark-0"], []]
    two.worker.off = False
    assert call("down").out == "spark1: -\nspark2: 1 removed\n"


def test_up_says_where_the_model_is_served_and_which_variables_are_missing(
    two: Two, call: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    done = call("up")
    assert done.code == 0
    assert "spark1 serves at http://192.168.100.10:8000/v1" in done.err
    assert "HF_TOKEN is not set here" in done.err
