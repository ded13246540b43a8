"""Writes trees as tar archives: the same tree gives the same bytes."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator

from imagefactory.building.tree import Entry, Kind, Tree

_TYPES = {
    Kind.FILE: tarfile.REGTYPE,
    Kind.FOLDER: tarfile.DIRTYPE,
    Kind.SYMLINK: tarfile.SYMTYPE,
}


def blocks(tree: Tree, epoch: int) -> Iterator[bytes]:
    """An archive of ``tree``, in pieces; every date is ``epoch``, in seconds."""
    first: dict[str, str] = {}
    for path, entry in tree:
        header = _header(path, entry, epoch)
        if entry.inode and (other := first.setdefault(entry.inode, path)) != path:
            header.type, header.linkname, header.size = tarfile.LNKTYPE, other, 0
        yield header.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
        if header.size:
            yield from entry.chunks()
            yield bytes(-header.size % tarfile.BLOCKSIZE)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _header(path: str, entry: Entry, epoch: int) -> tarfile.TarInfo:
    header = tarfile.TarInfo(path + "/" * (entry.kind is Kind.FOLDER))
    header.type, header.mode, header.mtime = _TYPES[entry.kind], entry.mode, epoch
    header.uid, header.gid = entry.uid, entry.gid
    header.linkname = entry.target
    header.size = entry.size if entry.kind is Kind.FILE else 0
    return header
