"""What killed verifications leave behind is removed; what a living one uses is not."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.docker import FakeDocker
from support.processes import dead_owner

from imagefactory.system import owner
from imagefactory.system.engine import Engine
from imagefactory.verifying import leftovers


@pytest.mark.programs
def test_a_sweep_removes_what_is_orphaned_and_nothing_else(
    tmp_path: Path, docker: FakeDocker, capsys: pytest.CaptureFixture[str]
) -> None:
    gone, mine = dead_owner(), owner.mine()
    names = [f"imagefactory-model-{gone}-abc_d1", f"imagefactory-model-{mine}-abc_d1", "sources"]
    for name in names:
        (tmp_path / name / "model").mkdir(parents=True)
    name = "imagefactory-0123456789ab"
    docker.answer("ps --all", out=f"1\t{name}\t{gone}\n2\t{name}\t{mine}\n")
    docker.answer("container rm --force --volumes 1")
    leftovers.sweep(Engine(binary=str(docker.program)), tmp_path)
    assert [(tmp_path / name).exists() for name in names] == [False, True, True]
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
