"""The files of an image that is being assembled. Pure but for reading file contents."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from operator import itemgetter
from pathlib import Path
from typing import Protocol

from imagefactory.errors import InputError, fail

#: More steps than following any path takes, unless its links form a loop.
_STEPS = 4000
#: Bytes that are read at a time.
CHUNK = 1 << 20


class Kind(StrEnum):
    """What a path is. Debian packages contain no devices, pipes or sockets."""

    FILE = "file"
    FOLDER = "folder"
    SYMLINK = "symbolic link"


class Content(Protocol):
    """The content of a file that is read only when it is written."""

    @property
    def size(self) -> int:
        """Its bytes."""

    def chunks(self) -> Iterator[bytes]:
        """The content, in pieces. Raises OSError if there is less of it than ``size``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """``size`` bytes of the file ``path``, from ``offset`` on."""

    path: Path
    offset: int
    size: int

    def chunks(self) -> Iterator[bytes]:
        """The bytes, in pieces. Raises OSError if the file ends before."""
        left = self.size
        with self.path.open("rb", buffering=0) as stream:
            stream.seek(self.offset)
            while left:
                chunk = stream.read(min(left, CHUNK))
                if not chunk:
                    raise OSError(f"{self.path} was cut off while it was read")
                left -= len(chunk)
                yield chunk


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One path of the image.

    Attributes:
        mode: permission bits, with setuid, setgid and sticky.
        content: of a file; empty for anything else.
        target: of a symbolic link; empty for anything else.
        package: the package that it comes from, or whose script would have made it.
        inode: the same text for all names of one file (hard links); empty for a single name.
    """

    kind: Kind
    mode: int
    uid: int = 0
    gid: int = 0
    content: bytes | Content = b""
    target: str = ""
    package: str = ""
    inode: str = ""

    @property
    def size(self) -> int:
        """The number of bytes of the content."""
        return len(self.content) if isinstance(self.content, bytes) else self.content.size

    def head(self, size: int) -> bytes:
        """The first ``size`` bytes of the content, or all of a shorter one."""
        return next(self.chunks(), b"")[:size]

    def read(self) -> bytes:
        """The whole content."""
        return b"".join(self.chunks())

    def chunks(self) -> Iterator[bytes]:
        """The whole content, in pieces; none for what is empty."""
        if not isinstance(self.content, bytes):
            yield from self.content.chunks()
        elif self.content:
            yield self.content


class Tree:
    """Paths (without a leading slash) and what they are."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}

    def __contains__(self, path: str) -> bool:
        return path in self.entries

    def __iter__(self) -> Iterator[tuple[str, Entry]]:
        """All paths, parents before what they contain, in the order of their bytes."""
        return iter(sorted(self.entries.items(), key=itemgetter(0)))

    def below(self, prefix: str) -> Iterator[tuple[str, Entry]]:
        """The paths that start with ``prefix``, in the order of their bytes."""
        yield from sorted(
            (item for item in self.entries.items() if item[0].startswith(prefix)), key=itemgetter(0)
        )

    def put(self, path: str, entry: Entry) -> None:
        """Set what ``path`` is, with the parent folders that it still lacks."""
        parent = path.rpartition("/")[0]
        if parent and parent not in self.entries:
            self.put(parent, Entry(kind=Kind.FOLDER, mode=0o755, package=entry.package))
        self.entries[path] = entry

    def file(
        self, path: str, content: bytes | str, *, mode: int = 0o644, gid: int = 0, package: str = ""
    ) -> None:
        """Write a file. Text is encoded as UTF-8; a symbolic link in the way is followed."""
        data = content.encode() if isinstance(content, str) else content
        self.put(
            self.real(path),
            Entry(kind=Kind.FILE, mode=mode, gid=gid, content=data, package=package),
        )

    def folder(self, path: str, *, mode: int = 0o755, gid: int = 0, package: str = "") -> None:
        """Make a folder, unless ``path`` exists."""
        if self.real(path) not in self.entries:
            self.put(self.real(path), Entry(kind=Kind.FOLDER, mode=mode, gid=gid, package=package))

    def symlink(self, path: str, target: str, *, package: str = "") -> None:
        """Make a symbolic link; one that exists is replaced."""
        entry = Entry(kind=Kind.SYMLINK, mode=0o777, target=target, package=package)
        self.put(self._parent_real(path), entry)

    def copy(self, source: str, path: str, *, package: str = "") -> None:
        """Copy a file with its mode and owner, unless ``path`` exists.

        Raises InputError if there is no file ``source``.
        """
        if self.real(path) not in self.entries:
            entry = self.find(source)
            if entry is None:
                raise fail(
                    InputError,
                    "base-file-missing",
                    f"the scripts of {package} copy /{source}, which is in none of the packages",
                    fix="report this: the reviewed table does not match the package",
                )
            self.put(self.real(path), replace(entry, package=package, inode=""))

    def remove(self, path: str) -> None:
        """Remove a path with everything below it; nothing happens if it does not exist."""
        for name in [name for name in self.entries if name == path or name.startswith(path + "/")]:
            del self.entries[name]

    def find(self, path: str) -> Entry | None:
        """What ``path`` is after following symbolic links; None if it does not exist."""
        return self.entries.get(self.real(path))

    def text(self, path: str) -> str:
        """The content of a text file. Raises InputError if there is no such file."""
        entry = self.find(path)
        if entry is None or entry.kind is not Kind.FILE:
            raise fail(
                InputError,
                "base-file-missing",
                f"/{path} is in none of the packages",
                fix="add the package that contains it to the base's packages",
            )
        return entry.read().decode()

    def raw(self, path: str) -> str:
        """As ``text``, for a file that may have other bytes than UTF-8; they are kept."""
        entry = self.find(path)
        return entry.read().decode(errors="surrogateescape") if entry else ""

    def real(self, path: str) -> str:
        """``path`` with all symbolic links followed, whether or not it exists.

        Raises InputError if links form a loop.
        """
        done: list[str] = []
        todo = [part for part in reversed(path.split("/")) if part]
        for _ in range(_STEPS):
            if not todo:
                return "/".join(done)
            part = todo.pop()
            if part in {".", ".."}:
                done = done[: -1 if part == ".." else None]
                continue
            entry = self.entries.get("/".join([*done, part]))
            if entry is None or entry.kind is not Kind.SYMLINK:
                done.append(part)
                continue
            if entry.target.startswith("/"):
                done = []
            todo += [piece for piece in reversed(entry.target.split("/")) if piece]
        raise fail(InputError, "base-link-loop", f"the symbolic links of /{path} form a loop")

    def _parent_real(self, path: str) -> str:
        parent, _, name = path.rpartition("/")
        return "/".join(part for part in (self.real(parent), name) if part)


def permissions(mode: int) -> int:
    """The bits of a file mode that a tar archive keeps."""
    return stat.S_IMODE(mode)
