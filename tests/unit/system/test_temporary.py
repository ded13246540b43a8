"""Temporary folders go with the process that made them, or with the next one if it was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.processes import dead_owner

from imagefactory.system import files, owner, temporary

KILLED = """
import os, signal
from imagefactory.system import temporary
with temporary.folder(prefix="imagefactory-wheel-") as folder:
    (folder / "made.tar").write_text("gigabytes")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    temporary._sweep.cache_clear()
    yield folder
    temporary._sweep.cache_clear()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_is_gone_after_its_use_and_nobody_takes_it_meanwhile(root: Path) -> None:
    with temporary.folder(prefix="imagefactory-lock-") as folder:
        assert folder.parent == root
        assert temporary.orphans() == []
    assert names(root) == []


@pytest.mark.programs
def test_the_next_process_removes_what_a_killed_one_left(root: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED], env={**os.environ, "TMPDIR": str(root)}, check=False
    )
    assert done.returncode == -signal.SIGKILL
    (left,) = root.iterdir()
    assert temporary.orphans() == [left]
    with temporary.folder(prefix="imagefactory-lock-") as folder:
        assert names(root) == [folder.name]


def test_what_a_killed_fork_left_is_removed_by_the_next_one(root: Path) -> None:
    assert owner.mine() == owner.mine()  # known before the fork
    for number in range(2):
        if not (child := os.fork()):
            files.write_text(root / "a", "swept")
            temporary.part_of(root / "b").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(child, 0)
        parts = [name for name in names(root) if name != "a"]
        assert len(parts) == 1, number


def test_only_what_is_an_orphans_folder_is_removed(root: Path, tmp_path: Path) -> None:
    gone = dead_owner()
    foreign = ["imagefactory-lock-abcdefgh", f"other-{gone}-ab", f"imagefactory-lock-{gone}"]
    kept = [f"imagefactory-lock-{owner.mine()}-ab_d1", *foreign]
    for name in (*kept, f"imagefactory-lock-{gone}-ab_d1"):
        (root / name).mkdir()
    (root / f"imagefactory-file-{gone}-ab_d1").touch()
    (tmp_path / "precious").mkdir()
    (root / f"imagefactory-link-{gone}-ab_d1").symlink_to(tmp_path / "precious")
    assert [path.name for path in temporary.orphans()] == [f"imagefactory-lock-{gone}-ab_d1"]
    temporary.remove(temporary.orphans())
    assert set(kept) < set(names(root))
    assert (tmp_path / "precious").is_dir()


def test_folders_of_other_users_stay(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / f"imagefactory-lock-{dead_owner()}-ab_d1").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    assert temporary.orphans() == []


def test_other_parents_are_searched_for_orphans_too(root: Path, tmp_path: Path) -> None:
    left = [parent / f"imagefactory-x-{dead_owner()}-ab" for parent in (root, tmp_path / "cache")]
    for path in left:
        path.mkdir(parents=True)
    assert temporary.orphans(tmp_path / "cache", tmp_path / "missing") == left
