"""Temporary folders. Their names say whose they are: those of killed processes can be found."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from imagefactory.system import owner

#: How all names start; the owner and something random follow the rest of the prefix.
OURS = "imagefactory-"


@contextmanager
def folder(*, prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """An empty folder, in the system's folder for temporary ones or in ``parent``.

    What killed processes left there is removed first. ``prefix`` begins with ``OURS``.
    """
    root = parent or _system()
    _sweep(root)
    name = f"{prefix}{owner.mine()}-"
    # a program that outlives its caller may still write into it
    with tempfile.TemporaryDirectory(prefix=name, dir=root, ignore_cleanup_errors=True) as made:
        yield Path(made)


def orphans(*parents: Path) -> list[Path]:
    """The folders of processes that have ended: in the system's folder, and in ``parents``."""
    return [path for root in (_system(), *parents) for path in _orphans(root)]


def remove(folders: list[Path]) -> None:
    """Remove folders as far as possible: another process may do so, too."""
    for path in folders:
        shutil.rmtree(path, ignore_errors=True)


@cache
def _sweep(root: Path) -> None:
    """Once for each process, for nothing of ours is quickly left behind in great numbers."""
    remove(_orphans(root))


def _orphans(root: Path) -> list[Path]:
    return [path for path in sorted(root.glob(f"{OURS}*")) if _is_orphan(path)]


def _is_orphan(path: Path) -> bool:
    """Whether its owner has ended. Other users' folders, and links, are none of our business."""
    parts = path.name.rsplit("-", 5)  # prefix, the four parts of an owner, something random
    if not owner.gone("-".join(parts[1:-1])):
        return False
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def _system() -> Path:
    return Path(tempfile.gettempdir())
