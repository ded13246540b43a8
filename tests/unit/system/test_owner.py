"""Whose a container or a folder is: a process that runs, or one that has ended."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from imagefactory.system import owner


@pytest.mark.programs
def test_a_process_is_alive_as_long_as_it_runs() -> None:
    program = "from imagefactory.system import owner; print(owner.mine())"
    argv = [sys.executable, "-c", program]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert owner.gone(done.stdout.strip())
    assert not owner.gone(owner.mine())


@pytest.mark.programs
def test_a_zombie_has_ended() -> None:
    with subprocess.Popen(["true"]) as child:
        while Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.001)
        machine, _, _, since = owner.mine().rsplit("-", 3)
        started = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[19]
        assert owner.gone(f"{machine}-{child.pid}-{started}-{since}")


@pytest.mark.parametrize("text", ["", "x", "a-b-c-d", "1-2-3", "-1-2-3", "-1--3"])
def test_what_is_no_owner_has_not_ended(text: str) -> None:
    assert not owner.gone(text)


def test_of_another_machine_only_what_is_a_day_old_has_ended() -> None:
    _, pid, started, _ = owner.mine().rsplit("-", 3)
    theirs = f"elsewhere.1-{pid}-{started}-1000000"
    assert not owner.gone(theirs, now=1_000_000 + 3600)
    assert owner.gone(theirs, now=1_000_000 + 25 * 3600)
