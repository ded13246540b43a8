"""Layers that an engine unpacks in another way than Python's tarfile reads them.

Each was loaded into Docker 26.1 once, and had the effect that ``SEEN`` says.
"""

from __future__ import annotations

from collections.abc import Mapping

from support.whole_images import BASE, LIBRARY, SITE

BLOCK = 512
END = bytes(2 * BLOCK)
USTAR, GNU, OLD = b"ustar\x0000", b"ustar  \0", bytes(8)
EVIL = f"{SITE}/evil.pth"
CODE = b"import evil\n"
PROGRAM = "usr/bin/python3.13"
assert BASE[PROGRAM].data == LIBRARY


def member(
    name: str,
    data: bytes = b"",
    *,
    kind: bytes = b"0",
    mode: int = 0o644,
    uid: int = 0,
    link: str = "",
    magic: bytes = USTAR,
    prefix: bytes = b"",
    size: bytes | None = None,
) -> bytes:
    """A header with its content, as raw as they come."""
    fields = (
        (0, name.encode()),
        (100, b"%07o\0%07o\0%07o\0" % (mode, uid, 0)),
        (124, b"%011o\0" % len(data) if size is None else size),
        (136, b"%011o\0" % 0),
        (148, b" " * 8),
        (156, kind),
        (157, link.encode()),
        (257, magic),
        (345, prefix),
    )
    block = bytearray(BLOCK)
    for start, value in fields:
        block[start : start + len(value)] = value
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block) + data + bytes(-len(data) % BLOCK)


def pax(records: Mapping[str, str], *, kind: bytes = b"x", sign: str = "") -> bytes:
    """A PAX header; ``sign`` goes before the length of its records."""
    data = b""
    for key, value in records.items():
        rest = f" {key}={value}\n".encode()
        length = next(n for n in range(len(rest), 999) if n == len(f"{sign}{n}") + len(rest))
        data += f"{sign}{length}".encode() + rest
    return member("pax", data, kind=kind)


def long_name(name: str) -> bytes:
    return member("././@LongLink", name.encode() + b"\0", kind=b"L")


def removed(path: str) -> bytes:
    """A layer that removes ``path``."""
    folder, _, name = path.rpartition("/")
    return member(f"{folder}/.wh.{name}".lstrip("/")) + END


def _hides(*parts: bytes, seen_as: str = "tmp/x") -> tuple[bytes, bytes]:
    """A file that the engine calls EVIL, and a layer that removes what Python calls it."""
    return b"".join(parts) + END, removed(seen_as)


_HARD = member(PROGRAM, LIBRARY, mode=0o755)
_CAPABILITY = pax({"SCHILY.xattr.security.capability": "\1"})
_LINK = member("tmp/l", kind=b"2", link=f"/{SITE}")

#: The layers on top of a good image, and what of them the engine had.
SEEN: Mapping[str, tuple[bytes, ...]] = {
    "two PAX headers: the second one counts": _hides(
        pax({"path": "tmp/x"}), pax({"path": EVIL}), member("n", CODE)
    ),
    "a PAX header for all files: it does not count": _hides(
        pax({"path": "tmp/x"}, kind=b"g"), member(EVIL, CODE)
    ),
    "a long name after a PAX header: the long name counts": _hides(
        pax({"path": "tmp/x"}), long_name(EVIL), member("n", CODE)
    ),
    "times in GNU's place of a prefix: they are no prefix": _hides(
        member(EVIL, CODE, magic=GNU, prefix=b"0" * 11 + b"\0"), seen_as="0" * 11
    ),
    "a prefix in a header of 1979: it is none": _hides(
        member(EVIL, CODE, magic=OLD, prefix=b"tmp/x")
    ),
    "the name of a sparse file without its version: it does not count": _hides(
        pax({"path": EVIL, "GNU.sparse.name": "tmp/x"}), member("n", CODE)
    ),
    "a record whose length has a sign: it counts": _hides(
        pax({"path": EVIL}, sign="+"), member("tmp/x", CODE)
    ),
    "a size that begins with NUL: it counts": _hides(
        member("tmp/x", size=b"\0%010o\0" % BLOCK) + member("tmp/x/y")
    ),
    "a file below a link: it is where the link points to": _hides(
        _LINK, member("tmp/l/evil.pth", CODE), seen_as="tmp/l"
    ),
    "a hard link that is setuid: its file is setuid": _hides(
        _HARD, member("tmp/x", kind=b"1", link=PROGRAM, mode=0o4755)
    ),
    "a hard link of somebody else: its file belongs to him": _hides(
        _HARD, member("tmp/x", kind=b"1", link=PROGRAM, mode=0o755, uid=1000)
    ),
    "a hard link with a capability: its file has it": _hides(
        _HARD, _CAPABILITY, member("tmp/x", kind=b"1", link=PROGRAM, mode=0o755)
    ),
    "a hard link through a link": (
        _HARD
        + member("tmp/l", kind=b"2", link="/usr/bin")
        + member("tmp/x", kind=b"1", link="tmp/l/python3.13", mode=0o4755)
        + END,
        removed("tmp/x"),
        removed("tmp/l"),
    ),
    "a path twice: a hard link is what it was at that time": _hides(
        member("tmp/x", CODE),
        member(PROGRAM, kind=b"1", link="tmp/x", mode=0o755),
        member("tmp/x", LIBRARY, mode=0o755),
    ),
    "a layer removes what is below a link: the link becomes a folder": (
        member("opt/venv/lib64/.wh.x") + END,
    ),
    "a layer removes what it has": (member("tmp/x/y") + member("tmp/.wh.x") + END,),
    "the removal of nothing: the engine refuses it": (member(f"{SITE}/vllm/.wh.") + END,),
    "a file outside": (member("../x") + END,),
}
