"""The files of an image as an engine exports them, and what differs between two such trees.

Pure but for the stream.
"""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import IO

#: What the engine itself puts into every container, with the date of that moment.
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
    """One file: its kind, permission bits, owner, bytes, date (seconds), where a link leads.

    SHA-256 of its content.
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
    """A path that differs: what of it (``only in the first``, ``only in the second``, or fields).

    And both sizes.
    """

    path: str
    what: str
    old_size: int
    new_size: int

    def as_dict(self) -> dict[str, object]:
        """The change as plain JSON values."""
        return asdict(self)


def read(stream: IO[bytes]) -> dict[str, Entry]:
    """Every file of a tar stream by its path, but for what an engine adds to containers.

    Raises tarfile.TarError.
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
    """What differs, by path; dates count."""
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
    """SHA-256 over paths, kinds, permissions, owners, links and contents.

    Equal content, whatever its dates.
    """
    lines = [
        f"{p}\0{e.kind}\0{e.mode}\0{e.owner}\0{e.link}\0{e.sha256}" for p, e in sorted(tree.items())
    ]
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()
