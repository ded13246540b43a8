"""Reads the files of an exported image, and compares two such trees. Pure but for the stream."""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import IO

#: What the engine adds to every container, with the current date.
RUNTIME = frozenset(
    {
        ".dockerenv",
        "dev",
        "etc",
        "proc",
        "sys",
        "etc/hostname",
        "etc/hosts",
        "etc/mtab",
        "etc/resolv.conf",
        "dev/console",
    }
)
_KINDS = {tarfile.DIRTYPE: "folder", tarfile.SYMTYPE: "link", tarfile.LNKTYPE: "hard link"}
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One file; ``size`` in bytes, ``date`` in seconds, ``link`` is a link's target.

    ``sha256`` is of the content, and empty for anything but regular files.
    """

    kind: str
    mode: int
    owner: str
    size: int
    date: int
    link: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """A path that differs, and both sizes.

    ``what`` is ``only in the first``, ``only in the second``, or the attributes that differ.
    """

    path: str
    what: str
    old_size: int
    new_size: int

    def as_dict(self) -> dict[str, object]:
        """The change as plain JSON values."""
        return asdict(self)


def read(stream: IO[bytes]) -> dict[str, Entry]:
    """Every file of a tar stream by path, except what an engine adds to every container.

    Raises tarfile.TarError if the stream is damaged.
    """
    found = {}
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            path = member.name.removeprefix("./").rstrip("/")
            if path and path not in RUNTIME:
                found[path] = _entry(archive, member)
    return found


def _entry(archive: tarfile.TarFile, member: tarfile.TarInfo) -> Entry:
    content = archive.extractfile(member) if member.isreg() else None
    return Entry(
        kind="file" if member.isreg() else _KINDS.get(member.type, "special"),
        mode=member.mode,
        owner=f"{member.uid}:{member.gid}",
        size=member.size,
        date=int(member.mtime),
        link=member.linkname,
        sha256=_sha256(content) if content else "",
    )


def _sha256(content: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while chunk := content.read(_CHUNK):
        digest.update(chunk)
    return digest.hexdigest()


def compare(old: Mapping[str, Entry], new: Mapping[str, Entry]) -> list[FileChange]:
    """The paths that differ, dates included."""
    changes = []
    for path in sorted({*old, *new}):
        before, after = old.get(path), new.get(path)
        if before != after:
            what = _what(before, after)
            sizes = (before.size if before else 0, after.size if after else 0)
            changes.append(FileChange(path=path, what=what, old_size=sizes[0], new_size=sizes[1]))
    return changes


def _what(old: Entry | None, new: Entry | None) -> str:
    if old is None:
        return "only in the second"
    if new is None:
        return "only in the first"
    fields = ("kind", "mode", "owner", "link", "date")
    names = [name for name in fields if getattr(old, name) != getattr(new, name)]
    return ", ".join([*(["content"] if old.sha256 != new.sha256 else []), *names])


def fingerprint(tree: Mapping[str, Entry]) -> str:
    """SHA-256 over paths, kinds, permissions, owners, links and contents, but not dates."""
    lines = [
        f"{p}\0{e.kind}\0{e.mode}\0{e.owner}\0{e.link}\0{e.sha256}" for p, e in sorted(tree.items())
    ]
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()
