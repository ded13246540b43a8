"""How the program ends: its exit code, and what it writes to which stream, as text and as JSON."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from support import projects
from support.program import Run, environment, run, runner, start

from imagefactory import cli, redaction
from imagefactory.errors import CheckFailedError, Problem
from imagefactory.system import shell, ui
from imagefactory.system.commandline import CommandLog

__all__ = ["run"]


def ending(monkeypatch: pytest.MonkeyPatch, command: Callable[[], None]) -> None:
    """Let the program run ``command`` in place of what the command line says."""
    monkeypatch.setattr(cli, "app", lambda **_: command())


def broken(result: object) -> Callable[[], None]:
    def command() -> None:
        if result is not None:
            ui.emit_json(result)
        raise CheckFailedError(Problem(code="check-failed", where="tag", what="x", fix="y"))

    return command


FAILED = {
    "errors": [{"code": "check-failed", "where": "tag", "what": "x", "fix": "y", "detail": ""}],
    "exit_code": 1,
}


@pytest.mark.parametrize(
    ("result", "document"),
    [(None, FAILED), ({"a": 1}, {"a": 1, **FAILED}), ([{"a": 1}], [{"a": 1}]), ([], [])],
)
def test_with_json_a_failure_is_one_document_on_standard_output(
    monkeypatch: pytest.MonkeyPatch, run: Run, result: object, document: object
) -> None:
    ending(monkeypatch, broken(result))
    done = run("verify", "tag", "--json")
    assert (done.code, json.loads(done.out)) == (1, document)
    assert "error: tag: x [check-failed]" in done.err


def test_what_python_warns_of_in_the_sources_of_others_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    def parse() -> None:
        warnings.warn("invalid escape sequence", SyntaxWarning, stacklevel=1)
        sys.exit(0)

    ending(monkeypatch, parse)
    assert run("plan") == (0, "", "")


def test_without_json_a_failure_is_text_on_standard_error(
    monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    ending(monkeypatch, broken(None))
    for argv in (["verify"], ["verify", "--", "--json"]):
        done = run(*argv)
        assert (done.code, done.out) == (1, "")


@pytest.mark.parametrize(
    "argv",
    [
        ["plan", "--nonsense", "--json"],
        ["patch", "check", "--json"],
        ["plan", "--json", "--select"],
        ["plan", "--json", "--select", "flavour=x"],
        ["build", "--json"],
        ["verify", "tag", "--from", "folder", "--json"],
        ["verify", "tag", "--gpu", "--level", "static", "--json"],
    ],
)
def test_with_json_wrong_input_is_a_document_too(run: Run, argv: list[str]) -> None:
    done = run(*argv)
    found = json.loads(done.out)
    assert (done.code, found["exit_code"]) == (2, 2)
    assert all(one["what"] and one["fix"] for one in found["errors"])


def test_with_json_a_bug_is_a_document_and_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def bug(**_: object) -> None:
        redaction.remember("s3cret-word")
        raise KeyError("s3cret-word")

    monkeypatch.setattr(cli, "app", bug)
    monkeypatch.setattr(sys, "argv", ["imagefactory", "plan", "--json"])
    monkeypatch.setattr(shell, "LOG", CommandLog())
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    signal.signal(signal.SIGTERM, handler)
    assert ended.value.code == 1
    written = capsys.readouterr()
    (error,) = json.loads(written.out)["errors"]
    assert (error["code"], error["what"]) == ("internal-error", "KeyError: '***'")
    assert "Traceback (most recent call last)" in written.err
    assert "s3cret-word" not in written.out + written.err


@pytest.mark.programs
@pytest.mark.parametrize(
    ("number", "code", "name"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")],
)
def test_with_json_a_command_that_is_stopped_is_a_document_too(
    tmp_path: Path, number: int, code: int, name: str
) -> None:
    docker = tmp_path / "docker"
    docker.write_text(f"#!/bin/sh\necho $$ >> {tmp_path}/up\nexec sleep 30\n")
    docker.chmod(0o755)
    process = start(tmp_path, "plan", "--json", PATH=f"{tmp_path}:{os.environ['PATH']}")
    up = tmp_path / "up"
    while not up.exists() or len(up.read_text().splitlines()) < 2:  # engine and Buildx
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, number)  # as a terminal does
    out, said = process.communicate(timeout=60)
    found = json.loads(out)
    assert (process.returncode, found["exit_code"]) == (code, code)
    assert [one["code"] for one in found["errors"]] == [name]
    assert "Traceback" not in said


@pytest.fixture
def small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """The program in a small project, which keeps its state there."""
    projects.write(tmp_path)
    return runner(monkeypatch, capsys, tmp_path, environment(tmp_path))


def test_what_the_terminal_cannot_encode_is_escaped(
    small: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    done = small("plan", "--explain", "gb10* not é\x1b[2J")
    sys.stdout.flush()
    assert done.code == 0, done.err
    assert written.getvalue().startswith(rb"gb10* not \xe9\x1b[2J")


@pytest.mark.programs
def test_a_build_without_an_engine_is_one_document_and_logs_what_it_ran(
    tmp_path: Path, small: Run
) -> None:
    refused = small("build", "--matrix", "--json")
    assert (refused.code, json.loads(refused.out)["exit_code"]) == (3, 3)
    assert "[no-engine]" in refused.err
    logged = (tmp_path / "imagefactory" / "logs" / "commands.log").read_text()
    assert "docker version --format" in logged


@pytest.mark.programs
@pytest.mark.parametrize(("level", "code"), [("1", 0), ("2", 3)])
def test_a_python_that_would_change_images_is_refused(
    tmp_path: Path, level: str, code: int
) -> None:
    process = start(tmp_path, "plan", PYTHONOPTIMIZE=level)
    _, said = process.communicate(timeout=60)
    assert process.returncode == code
    assert ("Python runs with -OO" in said, "unset PYTHONOPTIMIZE" in said) == (code == 3,) * 2


def test_a_current_folder_that_was_removed_is_named_as_the_cause(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()

    def command() -> None:
        gone.rmdir()
        Path.cwd()

    ending(monkeypatch, command)
    done = run("plan", cwd=gone)
    assert (done.code, "the current folder does not exist any more" in done.err) == (3, True)
