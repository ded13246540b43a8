"""Before its long tests, `make test` says whether the disk has room for them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from support import ROOT

pytestmark = pytest.mark.programs

MEASURED = 30
OF_MAKE = ("MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS", "ROOM")


def asked(tmp_path: Path, *, free: int, had: int | None, needed: int = MEASURED) -> tuple[int, str]:
    """What is said with so many GiB free and in an engine, which may not have been started yet."""
    programs, home = tmp_path / "bin", tmp_path / "home"
    data = home / ".local/state/imagefactory/engine"
    (data if had is not None else home).mkdir(parents=True)
    programs.mkdir()
    answers = {
        "docker": "exit 1",
        "df": f"printf 'Filesystem Avail\\n%s\\n%s\\n' '/dev/a {free << 20}' '/dev/a {free << 20}'",
        "du": f"printf '%s\\t%s\\n' {(had or 0) << 20} {data}",
    }
    for name, body in answers.items():
        (programs / name).write_text(f"#!/bin/sh\n{body}\n")
        (programs / name).chmod(0o755)
    done = subprocess.run(
        [ROOT / "scripts/room", str(needed)],
        env={"HOME": str(home), "PATH": f"{programs}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == ""
    return done.returncode, done.stderr


def test_nothing_is_said_if_there_is_room(tmp_path: Path) -> None:
    assert asked(tmp_path, free=45, had=None) == (0, "")


@pytest.mark.parametrize("had", [None, 2])
def test_a_first_run_without_room_is_refused_in_one_line(tmp_path: Path, had: int | None) -> None:
    code, said = asked(tmp_path, free=12, had=had)
    assert code == 3
    (line,) = said.splitlines()
    assert line.startswith(
        "room: error: the tests with an engine take about 30 GiB, and 12 GiB are"
    )
    assert line.endswith("make test ROOM=0 tries it all the same")


def test_a_run_with_a_filled_engine_is_only_warned(tmp_path: Path) -> None:
    code, said = asked(tmp_path, free=12, had=25)
    assert code == 0
    assert said.startswith("room: warning: ")


def test_the_check_can_be_left_out(tmp_path: Path) -> None:
    assert asked(tmp_path, free=1, had=None, needed=0) == (0, "")


def test_all_tests_and_those_with_an_engine_begin_with_the_check() -> None:
    # `make test` runs this test: what it was asked for is not for the one below
    environ = {name: value for name, value in os.environ.items() if name not in OF_MAKE}
    for target in ("test", "test-e2e"):
        argv = ["make", "--dry-run", target]
        done = subprocess.run(
            argv, cwd=ROOT, env=environ, capture_output=True, text=True, check=True
        )
        assert done.stdout.startswith(f"scripts/room '{MEASURED}'\n")
