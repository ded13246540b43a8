"""Reads tar archives of which every reader makes the same files.

Readers differ in what they make of rare headers. What an engine might read in another way than this
module is refused: the files that are judged have to be those that run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from imagefactory.verifying.outside.streams import CHUNK, Forward

BLOCK = 512
#: Bytes of the headers that belong to one file; Go reads no more.
MOST_EXTENDED = 1 << 20
_USTAR, _GNU, _OLD = b"ustar\x0000", b"ustar  \0", bytes(8)
_KINDS = {
    b"0": "file",
    b"\0": "file",
    b"1": "hard link",
    b"2": "link",
    b"3": "device",
    b"4": "device",
    b"5": "folder",
    b"6": "pipe",
}
_PAX, _LONG_NAME, _LONG_LINK, _GLOBAL = b"x", b"L", b"K", b"g"
#: Spaces and NULs around a number, as writers have them; readers differ in a NUL before it.
_OCTAL = re.compile(rb" *([0-7]*)[ \0]*")
_RECORD = re.compile(rb"([1-9][0-9]*) ([^=\0\n]+)=")
_XATTR = "SCHILY.xattr."
#: What ``git archive`` writes; it says nothing about files.
_HARMLESS = {"comment"}


@dataclass(frozen=True, slots=True)
class Member:
    """One file of an archive. ``path`` is relative to its root, which itself is empty."""

    path: str
    kind: str
    mode: int
    owner: str
    size: int
    link: str
    attributes: str


def members(stream: Forward) -> Iterator[Member]:
    """The files in ``stream``; the content of each may be read from there before the next one.

    Raises ValueError for what is no archive, or could be read in two ways.
    """
    ahead: dict[bytes, bytes] = {}
    while (block := stream.read(BLOCK)).strip(b"\0"):
        kind = _checked(block)
        size = _number(block[124:136])
        if kind in (_PAX, _LONG_NAME, _LONG_LINK, _GLOBAL):
            if kind in ahead or _PAX in ahead or (ahead and kind in (_PAX, _GLOBAL)):
                raise ValueError("a file of an archive has more than one name")
            data = _extended(stream, size)
            if kind != _GLOBAL:
                ahead[kind] = data
            elif _records(data).keys() - _HARMLESS:
                raise ValueError("an archive has a header for all files")
            continue
        member = _member(block, kind, ahead)
        ahead = {}
        end = stream.tell() + member.size
        yield member
        if stream.seek(end) != end:
            raise ValueError("an archive was cut")
        stream.seek(end + -member.size % BLOCK)
    while block:
        if block.strip(b"\0"):
            raise ValueError("an archive goes on after its end")
        block = stream.read(CHUNK)
    if ahead:
        raise ValueError("an archive ends with the name of a file")


def _checked(block: bytes) -> bytes:
    """The kind of a header, whose form every reader knows."""
    if len(block) != BLOCK:
        raise ValueError("an archive was cut")
    magic, rest = block[257:265], block[345:500]
    known = magic == _USTAR or (magic in (_GNU, _OLD) and not rest.strip(b"\0"))
    if not known or block[500:].strip(b"\0"):
        raise ValueError("a header of an archive has an unknown form")
    if _number(block[148:156]) != sum(block[:148]) + sum(block[156:]) + 8 * 32:
        raise ValueError("a header of an archive is damaged")
    return block[156:157]


def _extended(stream: Forward, size: int) -> bytes:
    if size > MOST_EXTENDED:
        raise ValueError("a header of an archive is too large")
    data = stream.read(size)
    stream.seek(stream.tell() + -size % BLOCK)
    if len(data) != size:
        raise ValueError("an archive was cut")
    return data


def _member(block: bytes, kind: bytes, ahead: Mapping[bytes, bytes]) -> Member:
    pax = _records(ahead.get(_PAX, b""))
    name, link = _plain(block[:100]), _plain(block[157:257])
    prefix = _plain(block[345:500])
    name = f"{prefix}/{name}" if prefix else name
    name = _long(ahead, _LONG_NAME) or _text(pax, "path") or name
    link = _long(ahead, _LONG_LINK) or _text(pax, "linkpath") or link
    called = _KINDS.get(kind)
    if called is None:
        raise ValueError(f"{name!r} in an archive is of the unknown kind {kind!r}")
    path = relative(name)
    if (called == "file" and name.endswith("/")) or (called != "folder" and not path):
        raise ValueError(f"{name!r} in an archive is a {called} with the name of a folder")
    if called == "device":
        link = f"{_number(block[329:337])}:{_number(block[337:345])}"
    uid = _digits(pax, "uid", _number(block[108:116]))
    gid = _digits(pax, "gid", _number(block[116:124]))
    attributes = sorted(
        f"{key.removeprefix(_XATTR)}={value.decode('utf-8', 'surrogateescape')}"
        for key, value in pax.items()
        if key.startswith(_XATTR)
    )
    return Member(
        path=path,
        kind=called,
        mode=_number(block[100:108]) & 0o7777,
        owner=f"{uid}:{gid}",
        size=_digits(pax, "size", _number(block[124:136])) if called == "file" else 0,
        link=link,
        attributes=" ".join(attributes),
    )


def relative(name: str) -> str:
    """The path below the root that ``name`` means. Raises ValueError for one outside."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ValueError(f"{name!r} in an archive has .. in it")
    return "/".join(parts)


def _number(field: bytes) -> int:
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    found = _OCTAL.fullmatch(field)
    if not found:
        raise ValueError(f"{field!r} in an archive is not a number")
    return int(found[1] or b"0", 8)


def _plain(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _long(ahead: Mapping[bytes, bytes], kind: bytes) -> str:
    data = ahead.get(kind, b"").rstrip(b"\0")
    if b"\0" in data or (kind in ahead and not data):
        raise ValueError("a name in an archive is empty, or has a NUL in it")
    return data.decode("utf-8", "surrogateescape")


def _records(data: bytes) -> dict[str, bytes]:
    """The records of a PAX header. Raises ValueError for what is not as the standard has it."""
    found: dict[str, bytes] = {}
    while data:
        start = _RECORD.match(data)
        length = int(start[1]) if start else 0
        record = data[:length]
        if not start or length <= start.end() or len(record) < length or record[-1:] != b"\n":
            raise ValueError("a header of an archive has a record that cannot be read")
        key = start[2].decode("utf-8", "surrogateescape")
        if key in found:
            raise ValueError(f"a header of an archive has the record {key} twice")
        if key.startswith("GNU.sparse.") or key == "hdrcharset":
            raise ValueError(f"a header of an archive has the record {key}")
        found[key], data = record[start.end() : -1], data[length:]
    return found


def _text(pax: Mapping[str, bytes], key: str) -> str:
    value = pax.get(key, b"")
    if b"\0" in value or (key in pax and not value):
        raise ValueError("a name in an archive is empty, or has a NUL in it")
    return value.decode("utf-8", "surrogateescape")


def _digits(pax: Mapping[str, bytes], key: str, otherwise: int) -> int:
    value = pax.get(key)
    if value is not None and not re.fullmatch(rb"[0-9]{1,19}", value):
        raise ValueError(f"{value!r} in an archive is not a number")
    return otherwise if value is None else int(value)
