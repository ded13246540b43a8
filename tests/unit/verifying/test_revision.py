"""The revision of the checks changes with what decides a verdict, and with nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from imagefactory.verifying import revision

OWN = Path(revision.__file__).parent


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the programs that verify, elsewhere."""
    return Path(shutil.copytree(OWN, tmp_path / "copy"))


def test_equal_programs_have_one_revision_wherever_they_are(copy: Path) -> None:
    made = revision.of(copy)
    assert made == revision.of_checks()
    (copy / "checks" / "torch" / "test_torch.py").unlink()  # is not installed
    (copy / "notes.txt").write_text("read by nobody")
    (copy / ".#server.py").symlink_to("an editor's lock")
    assert revision.of(copy) == made


@pytest.mark.parametrize(
    "name", ["checks/torch/check.py", "checks/torch/probe.py", "server.py", "log_rules.toml"]
)
def test_whatever_decides_a_verdict_changes_the_revision(copy: Path, name: str) -> None:
    with (copy / name).open("a") as file:
        file.write("# stricter\n")
    assert revision.of(copy) != revision.of_checks()


def test_a_new_check_and_a_moved_one_change_the_revision(copy: Path) -> None:
    (copy / "checks" / "more").mkdir()
    (copy / "checks" / "more" / "check.py").write_text("")
    more = revision.of(copy)
    (copy / "checks" / "more").rename(copy / "checks" / "most")
    assert len({revision.of_checks(), more, revision.of(copy)}) == 3
