"""Reads files that a person names, which may be anything, and writes files as a whole."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from imagefactory.system import temporary


def read(path: Path, limit: int) -> bytes:
    """The content of a regular file of at most ``limit`` bytes.

    Raises OSError for anything else: opening a pipe or reading a device might never end.
    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        code = errno.EISDIR if stat.S_ISDIR(found.st_mode) else errno.EINVAL
        text = os.strerror(code) if code == errno.EISDIR else "not a regular file"
        raise OSError(code, text, str(path))
    if found.st_size > limit:
        raise OSError(errno.EFBIG, f"larger than {limit} bytes", str(path))
    with path.open("rb") as file:
        return file.read(limit + 1)


def read_text(path: Path, limit: int) -> str:
    """As ``read``, decoded. Raises UnicodeDecodeError if it is not UTF-8, too."""
    return read(path, limit).decode("utf-8")


def write_text(path: Path, text: str) -> None:
    """Write a file in one step: whoever is killed meanwhile leaves it as it was.

    A device such as ``/dev/stdout`` is written to. With root's rights it would be replaced else.
    """
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """The file that becomes ``path`` when the block ends, or is removed if an error ends it.

    Others may do the same meanwhile: ``path`` is always what one of them wrote. An OSError names
    ``path``: that of a full disk names nothing.
    """
    in_place = path.exists() and not path.is_file()
    part = path if in_place else temporary.part_of(path)
    try:
        yield part
        if not in_place:
            part.replace(path)
    except OSError as error:
        if error.filename in (None, str(part)):
            error.filename, error.filename2 = str(path), None
        raise
    finally:
        if not in_place:
            with suppress(OSError):
                part.unlink()


def shown(path: Path) -> str:
    """A path for a person: relative if it is below the current folder."""
    full = path.absolute()
    return os.path.relpath(full) if full.is_relative_to(Path.cwd()) else str(path)


def check_target(path: Path) -> None:
    """Make the folder of a file that is written after long work. Raises OSError if it cannot be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))


def keep(path: Path, content: str | bytes) -> None:
    """Write a file of a cache, in one step and if possible: without it, work is only done again.

    Other processes and threads may write the same file meanwhile.
    """
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as part:
            part.write_bytes(content.encode() if isinstance(content, str) else content)


def write_durably(path: Path, content: bytes) -> None:
    """As ``write_text``, and on the disk when it returns: a machine that loses power keeps it."""
    with replacing(path) as part, part.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def link(source: Path, target: Path) -> None:
    """Make ``target`` the same file as ``source``; a copy where the file system has no links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
