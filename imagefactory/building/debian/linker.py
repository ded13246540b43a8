"""The cache of the dynamic linker, ``/etc/ld.so.cache``, as glibc's ldconfig writes it. Pure."""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch

from imagefactory.building.tree import Entry, Kind, Tree
from imagefactory.system.platforms import Platform

#: ELF library for glibc, and the architecture.
_FLAGS = {Platform.AMD64: 0x0303, Platform.ARM64: 0x0A03}
_MACHINES = {Platform.AMD64: 62, Platform.ARM64: 183}
CACHE = "etc/ld.so.cache"
_MAGIC = b"glibc-ld.so.cache1.1"
_LITTLE_ENDIAN = 2
_EXTENSION_MAGIC = 0xEAA42174
_HEADER = struct.Struct("<20sIIB3xI12x")
_ENTRY = struct.Struct("<iIIIQ")
_LOAD, _DYNAMIC = 1, 2
_STRTAB, _SONAME = 5, 14


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """A name that programs ask for, and the path at which it is found."""

    soname: str
    path: str


def make(tree: Tree, platform: Platform, *, libc_bin: str, old: bytes = b"") -> bytes:
    """The cache for the libraries of ``tree``, and for those of the cache ``old``.

    ``libc_bin`` is the version of the package with ldconfig, which the cache names. An old cache
    with entries for other processors is returned as it is: the linker finds libraries in its own
    folders without a cache, too.
    """
    known = decode(old, platform) if old else []
    if known is None:
        return old
    # files of an image whose content is not known
    sonames = {tree.real(one.path.strip("/")): one.soname for one in known}
    found = list(libraries(tree, platform, sonames))
    more = [one for one in known if one not in found]
    found = sorted([*found, *more], key=functools.cmp_to_key(_descending))
    return encode(found, platform, libc_bin=libc_bin)


def decode(cache: bytes, platform: Platform) -> list[Library] | None:
    """The libraries in a cache; None if it is not a cache of libraries for ``platform`` only."""
    if len(cache) < _HEADER.size or not cache.startswith(_MAGIC):
        return None
    _, count, *_ = _HEADER.unpack_from(cache)
    found = []
    for number in range(count):
        flags, soname, path, _, hwcap = _ENTRY.unpack_from(
            cache, _HEADER.size + number * _ENTRY.size
        )
        if flags != _FLAGS[platform] or hwcap:
            return None
        found.append(Library(soname=_string(cache, soname), path=_string(cache, path)))
    return found


def _string(cache: bytes, at: int) -> str:
    return cache[at : cache.index(b"\0", at)].decode()


def libraries(
    tree: Tree, platform: Platform, known: Mapping[str, str] | None = None
) -> Iterator[Library]:
    """The libraries in the linker's folders, in the order of the cache.

    ``known`` are the names inside libraries that have no content in ``tree``, by their path.
    """
    found = [
        Library(soname=soname, path=f"{folder}/{soname}")
        for folder in _folders(tree, platform)
        for soname in sorted(_sonames(tree, folder.strip("/"), platform, known or {}))
    ]
    # the sort is stable: of two libraries with one name, the one in the earlier folder is first
    yield from sorted(found, key=functools.cmp_to_key(_descending))


def missing_links(tree: Tree, platform: Platform) -> dict[str, str]:
    """The links that ldconfig would make: path -> target; packages bring nearly all of them."""
    links: dict[str, str] = {}
    for folder in _folders(tree, platform):
        here = tree.real(folder.strip("/"))
        for soname, name in _sonames(tree, folder.strip("/"), platform, {}).items():
            if f"{here}/{soname}" not in tree:
                links[f"{here}/{soname}"] = name
    return links


def _folders(tree: Tree, platform: Platform) -> list[str]:
    """The folders of ld.so.conf and the linker's own, without a second name for any of them."""
    triplet = f"{platform.machine}-linux-gnu"
    own = [f"/lib/{triplet}", f"/usr/lib/{triplet}", "/lib", "/usr/lib"]
    by_real: dict[str, str] = {}
    for folder in [*_configured(tree, "etc/ld.so.conf"), *own]:
        real = tree.real(folder.strip("/"))
        if real in tree:
            by_real.setdefault(real, folder)
    return list(by_real.values())


def _configured(tree: Tree, path: str) -> Iterator[str]:
    if tree.find(path) is None:
        return
    for line in tree.text(path).splitlines():
        words = line.partition("#")[0].split()
        if words[:1] == ["include"]:
            pattern = words[1].strip("/")
            for name, _ in tree:
                if fnmatch(name, pattern) and name.count("/") == pattern.count("/"):
                    yield from _configured(tree, name)
        elif words:
            yield words[0].rstrip("/")


def _sonames(
    tree: Tree, folder: str, platform: Platform, known: Mapping[str, str]
) -> dict[str, str]:
    """soname -> file name, of the libraries in one folder."""
    prefix = tree.real(folder) + "/"
    found: dict[str, str] = {}
    for path, entry in tree.below(prefix):
        name = path[len(prefix) :]
        if "/" in name or ".so" not in name or not name.startswith(("lib", "ld-")):
            continue
        file = tree.find(path) if entry.kind is Kind.SYMLINK else entry
        own = soname(file, platform) if file and file.kind is Kind.FILE else None
        own = known.get(tree.real(path)) if own is None else own
        if own is None:
            continue
        own = own or name
        # a link is listed under its own name if that is the soname, or the one that linking uses
        development = name.endswith(".so") and own.startswith(name)
        if entry.kind is Kind.SYMLINK and (name == own or development):
            found.setdefault(name, name)
        else:
            found[own] = max(found.get(own, name), name) if own in found else name
    return found


def soname(entry: Entry, platform: Platform) -> str | None:
    """The name inside a shared library: empty if it has none, None if it is no library."""
    head = entry.head(64)
    if head[:6] != b"\x7fELF\x02\x01" or len(head) < 64:
        return None
    kind, machine = struct.unpack_from("<HH", head, 16)
    if kind != 3 or machine != _MACHINES[platform]:
        return None
    data = entry.read()
    return _soname(data)


def _soname(data: bytes) -> str | None:
    (table,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    loads, dynamic = [], None
    for at in range(table, table + size * count, size):
        kind, _, offset, address, _, length = struct.unpack_from("<IIQQQQ", data, at)
        if kind == _LOAD:
            loads.append((address, offset, length))
        elif kind == _DYNAMIC:
            dynamic = (offset, length)
    if dynamic is None:
        return None
    tags: dict[int, int] = {}
    for at in range(dynamic[0], dynamic[0] + dynamic[1], 16):
        tag, value = struct.unpack_from("<QQ", data, at)
        if tag == 0:
            break
        tags.setdefault(tag, value)
    if _SONAME not in tags:
        return ""
    strings = next(
        offset + tags[_STRTAB] - address
        for address, offset, length in loads
        if address <= tags[_STRTAB] < address + length
    )
    start = strings + tags[_SONAME]
    return data[start : data.index(b"\0", start)].decode()


def encode(found: list[Library], platform: Platform, *, libc_bin: str) -> bytes:
    """The bytes of a cache with these libraries, which are in the cache's order."""
    texts = {text for library in found for text in (library.soname, library.path)}
    offsets, strings = _string_table(texts)
    start = _HEADER.size + _ENTRY.size * len(found)
    rows = b"".join(
        _ENTRY.pack(
            _FLAGS[platform], start + offsets[library.soname], start + offsets[library.path], 0, 0
        )
        for library in found
    )
    end = start + len(strings)
    extension = end + -end % 4
    upstream = re.split(r"[-+]", libc_bin)[0]
    generator = f"ldconfig (Debian GLIBC {libc_bin}) stable release version {upstream}".encode()
    header = _HEADER.pack(_MAGIC, len(found), len(strings), _LITTLE_ENDIAN, extension)
    tail = struct.pack("<IIIIII", _EXTENSION_MAGIC, 1, 0, 0, extension + 24, len(generator))
    return header + rows + strings + bytes(extension - end) + tail + generator


def _string_table(texts: Iterable[str]) -> tuple[dict[str, int], bytes]:
    """Where each text is, and all texts; one that ends another is stored within it."""
    offsets: dict[str, int] = {}
    table = bytearray()
    previous = ""
    # text reversed and in descending order: what is a tail comes right after what contains it
    for text in sorted(texts, key=lambda text: text.encode()[::-1], reverse=True):
        if previous.endswith(text):
            offsets[text] = offsets[previous] + len(previous) - len(text)
        else:
            offsets[text] = len(table)
            table += text.encode() + b"\0"
        previous = text
    return offsets, bytes(table)


def _descending(one: Library, other: Library) -> int:
    return _compare(other.soname, one.soname)


def _compare(one: str, other: str) -> int:
    """Compare library names; numbers in them by value, as the linker does."""
    pieces, others = re.findall(r"\d+|\D", one), re.findall(r"\d+|\D", other)
    for piece, against in zip(pieces, others, strict=False):
        if piece.isdigit() and against.isdigit():
            if int(piece) != int(against):
                return int(piece) - int(against)
        elif piece.isdigit() or against.isdigit():
            return 1 if piece.isdigit() else -1
        elif piece != against:
            return ord(piece) - ord(against)
    return len(pieces) - len(others)
