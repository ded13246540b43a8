"""Writes trees as tar archives: the same tree gives the same bytes."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from functools import lru_cache

from imagefactory.building.tree import Entry, Kind, Tree

_TYPES = {
    Kind.FILE: tarfile.REGTYPE,
    Kind.FOLDER: tarfile.DIRTYPE,
    Kind.SYMLINK: tarfile.SYMTYPE,
}
#: Bytes; the size of a larger file is encoded in another way.
_LARGEST = 8**11 - 1


def blocks(tree: Tree, epoch: int) -> Iterator[bytes]:
    """An archive of ``tree``, in pieces; every date is ``epoch``, in seconds."""
    first: dict[str, str] = {}
    for path, entry in tree:
        header = _header(path, entry, epoch)
        if entry.inode and (other := first.setdefault(entry.inode, path)) != path:
            header.type, header.linkname, header.size = tarfile.LNKTYPE, other, 0
        yield _encoded(header)
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


def _encoded(header: tarfile.TarInfo) -> bytes:
    """The header as bytes. Most differ only by name and size from one that was encoded before."""
    name = header.name.encode("utf-8", "surrogateescape")
    if header.linkname or len(name) > tarfile.LENGTH_NAME or header.size > _LARGEST:
        return _tobuf(header)
    like = _like(header.type, header.mode, header.mtime, header.uid, header.gid)
    block = bytearray(like)
    block[: len(name)] = name
    block[124:135] = b"%011o" % header.size
    # eight spaces stand for the checksum while it is computed
    total = sum(like[1:]) + sum(name) + sum(block[124:135]) - 11 * ord("0")
    total += 8 * ord(" ") - sum(like[148:156])
    block[148:156] = b"%06o\0 " % total
    return bytes(block)


@lru_cache(maxsize=256)
def _like(kind: bytes, mode: int, mtime: int, uid: int, gid: int) -> bytes:
    header = tarfile.TarInfo("")
    header.type, header.mode, header.mtime, header.uid, header.gid = kind, mode, mtime, uid, gid
    return _tobuf(header)


def _tobuf(header: tarfile.TarInfo) -> bytes:
    return header.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
