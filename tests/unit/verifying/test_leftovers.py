"""What killed verifications leave behind is removed; what a living one uses is not."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.docker import FakeDocker

from imagefactory.system.engine import Engine, owner
from imagefactory.verifying import leftovers


def dead() -> str:
    """The owner of what a process left that has ended."""
    program = "from imagefactory.system.engine import owner; print(owner.mine())"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.mark.programs
def test_a_process_is_alive_as_long_as_it_runs() -> None:
    assert not owner.gone(owner.mine())
    assert owner.gone(dead())


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


@pytest.mark.programs
def test_a_sweep_removes_what_is_orphaned_and_nothing_else(
    tmp_path: Path, docker: FakeDocker, capsys: pytest.CaptureFixture[str]
) -> None:
    gone, mine = dead(), owner.mine()
    names = [f"{leftovers.MODEL}{gone}-abc_d1", f"{leftovers.MODEL}{mine}-abc_d1", "sources"]
    for name in (*names, f"{leftovers.MODEL}old"):
        (tmp_path / name / "model").mkdir(parents=True)
    name = "imagefactory-0123456789ab"
    docker.answer("ps --all", out=f"1\t{name}\t{gone}\n2\t{name}\t{mine}\n")
    docker.answer("container rm --force --volumes 1")
    leftovers.sweep(Engine(binary=str(docker.program)), tmp_path)
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} >= {
        *names[1:],
        f"{leftovers.MODEL}old",
    }
    assert not (tmp_path / names[0]).exists()
    assert "1 containers, 1 temporary folders" in capsys.readouterr().err
    assert [call for call in docker.calls if " rm " in f" {call} "] == [
        "container rm --force --volumes 1"
    ]


@pytest.mark.programs
def test_a_sweep_that_finds_nothing_says_nothing(
    tmp_path: Path, docker: FakeDocker, capsys: pytest.CaptureFixture[str]
) -> None:
    docker.answer("ps --all")
    leftovers.sweep(Engine(binary=str(docker.program)), tmp_path)
    assert capsys.readouterr().err == ""


@pytest.fixture
def docker(tmp_path: Path) -> FakeDocker:
    folder = tmp_path / "bin"
    folder.mkdir()
    return FakeDocker(folder)
