"""The program: called in this process, or started as a user does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from imagefactory import cli
from imagefactory.system import shell
from imagefactory.system.commandline import CommandLog
from support import ROOT, projects


class Ended(NamedTuple):
    """How the program ended, and what it wrote."""

    code: int
    out: str
    err: str


Run = Callable[..., Ended]


def environment(state: Path) -> dict[str, str]:
    """An environment in which no engine answers, and nothing of the user's is touched."""
    return {
        "DOCKER_HOST": f"unix://{state}/none.sock",
        "IMAGEFACTORY_ENGINE_DIR": str(state),
        "XDG_STATE_HOME": str(state),
        "COLUMNS": "200",
    }


def runner(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    folder: Path,
    environ: Mapping[str, str] = {},
    *,
    command: str | None = None,
) -> Run:
    """Calls the entry point in this process and ``folder``, which saves a start of Python.

    With ``command``, only that one, which need not be said again.
    """
    program = ["imagefactory", *([command] if command else ())]

    def run(*argv: object, cwd: Path = folder) -> Ended:
        handler = signal.getsignal(signal.SIGTERM)
        with monkeypatch.context() as changed:
            changed.chdir(cwd)
            changed.setattr(sys, "argv", [*program, *map(str, argv)])
            changed.setattr(shell, "LOG", CommandLog())
            for name, value in environ.items():
                changed.setenv(name, value)
            with pytest.raises(SystemExit) as ended:
                cli.main()
        signal.signal(signal.SIGTERM, handler)
        captured = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Ended(ended.value.code, captured.out, captured.err)

    return run


@pytest.fixture
def run(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    """The program in the repository."""
    return runner(monkeypatch, capsys, ROOT, environment(tmp_path_factory.mktemp("state")))


def start(state: Path, *argv: str, **more: Any) -> subprocess.Popen[str]:
    """Starts the program as a user does, in a small project."""
    if not (state / "matrix.yaml").exists():
        projects.write(state)
    return subprocess.Popen(
        [sys.executable, "-m", "imagefactory", *argv],
        cwd=state,
        env={**os.environ, **environment(state), **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # what runs in the background of a shell inherits that Ctrl-C is ignored
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
