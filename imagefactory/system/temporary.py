"""Temporary folders and files: their names say whose they are, and killed processes are gone."""

from __future__ import annotations

import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from imagefactory.system import owner

#: How all names start; the owner and something random follow the rest of the prefix.
OURS = "imagefactory-"
#: Characters of a file's name in that of its part, which may have 255 bytes in all.
LONGEST = 36


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


def part_of(path: Path) -> Path:
    """A new name beside ``path`` for the file that is to become it.

    What killed processes left in that folder is removed first.
    """
    _sweep_parts(path.parent)
    start = f".{OURS}{path.name[:LONGEST]}"
    return path.with_name(f"{start}-{owner.mine()}-{secrets.token_hex(4)}")


def orphans(*parents: Path) -> list[Path]:
    """The folders of processes that have ended: in the system's folder, and in ``parents``."""
    return [path for root in (_system(), *parents) for path in _folders(root)]


def remove(folders: list[Path]) -> None:
    """Remove folders as far as possible: another process may do so, too."""
    for path in folders:
        shutil.rmtree(path, ignore_errors=True)


@cache
def _sweep(root: Path) -> None:
    """Once for each process, for nothing of ours is quickly left behind in great numbers."""
    remove(_folders(root))


@cache
def _sweep_parts(root: Path) -> None:
    for path in root.glob(f".{OURS}*"):
        if _is_orphan(path, stat.S_ISREG):
            with suppress(OSError):
                path.unlink()


for _swept in (_sweep, _sweep_parts):
    os.register_at_fork(after_in_child=_swept.cache_clear)


def _folders(root: Path) -> list[Path]:
    return [path for path in sorted(root.glob(f"{OURS}*")) if _is_orphan(path, stat.S_ISDIR)]


def _is_orphan(path: Path, is_kind: Callable[[int], bool]) -> bool:
    """Whether its owner has ended. What is another user's, or a link, is none of our business."""
    parts = path.name.rsplit("-", 5)  # prefix, the four parts of an owner, something random
    if not owner.gone("-".join(parts[1:-1])):
        return False
    try:
        found = path.lstat()
    except OSError:
        return False
    return is_kind(found.st_mode) and found.st_uid == os.geteuid()


def _system() -> Path:
    return Path(tempfile.gettempdir())
