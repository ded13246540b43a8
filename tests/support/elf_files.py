"""Shared libraries of a few hundred bytes, and wheels that contain them."""

from __future__ import annotations

import hashlib
import struct
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from imagefactory.locking.lock import FIND_LINKS, Wheel

AARCH64, X86_64 = 183, 62
#: Addresses are higher than offsets by this in a segment that was moved.
_MOVED = 0x10000


@dataclass(frozen=True, kw_only=True)
class Elf:
    """What a library has.

    Attributes:
        needed: names of libraries.
        imports: undefined symbols; ``name@version@file`` for one with a version.
        exports: defined symbols; ``name@version`` for one with a version.
        runpath: as in DT_RUNPATH.
        gpu: targets of its GPU code: ``sm_120f``, ``compute_90``.
        machine: of the file header.
        moved: whether the tables are in a segment behind all others, as patchelf puts them.
    """

    needed: Sequence[str] = ()
    imports: Sequence[str] = ()
    exports: Sequence[str] = ()
    weak: Sequence[str] = ()
    runpath: str = ""
    gpu: Sequence[str] = ()
    machine: int = AARCH64
    moved: bool = False
    _strings: bytearray = field(default_factory=lambda: bytearray(1), init=False)

    def build(self) -> bytes:
        """The file."""
        head, code = 64 + 56 * 3, b"".join(map(fat_binary, self.gpu))
        length = len(self._tables(0)[1])
        start = head + (len(code) if self.moved else 0)
        up = _MOVED if self.moved else 0
        tables, dynamic = self._tables(start + up + length)
        tables = dynamic + tables
        size = head + len(code) + len(tables)
        loads = [(4, 0, 0, size), (4, size, size, 0)]
        if self.moved:  # what patchelf adds is writable
            loads = [(4, 0, 0, start), (6, start, start + up, len(tables))]
        ident = b"\x7fELF\x02\x01\x01" + bytes(9)
        header = struct.pack("<HHIQQQIHHHHHH", 3, self.machine, 1, 0, 64, 0, 0, 64, 56, 3, 64, 0, 0)
        segments = [(1, *load) for load in loads] + [(2, 6, start, start + up, length)]
        rows = b"".join(
            struct.pack("<IIQQQQQQ", kind, flags, at, to, to, n, n, 1)
            for kind, flags, at, to, n in segments
        )
        return ident + header + rows + (code + tables if self.moved else tables + code)

    def _name(self, text: str) -> int:
        at = len(self._strings)
        self._strings.extend(text.encode() + b"\0")
        return at

    def _tables(self, start: int) -> tuple[bytes, bytes]:
        """All tables, the first of which is at the address ``start``, and the dynamic section."""
        self._strings[1:] = b""
        symbols, versions = [bytes(24)], [0]
        needs: dict[tuple[str, ...], int] = {}
        defines: dict[str, int] = {}
        for binding, names in ((1, self.imports), (2, self.weak)):
            for text in names:
                name, _, rest = text.partition("@")
                symbols.append(struct.pack("<IBBHQQ", self._name(name), binding << 4, 0, 0, 0, 0))
                versions.append(1)
                if rest:
                    needs.setdefault(tuple(rest.split("@")), len(needs) + 2)
                    versions[-1] = needs[tuple(rest.split("@"))]
        number = len(needs) + 2
        for text in self.exports:
            name, _, version = text.partition("@")
            symbols.append(struct.pack("<IBBHQQ", self._name(name), 0x12, 0, 1, 16, 1))
            versions.append(1)
            if version:
                defines.setdefault(version, number + len(defines))
                versions[-1] = defines[version]
        verneed = b"".join(
            struct.pack("<HHIII", 1, 1, self._name(file), 16, 32 if n < len(needs) - 1 else 0)
            + struct.pack("<IHHII", 0, 0, index, self._name(version), 0)
            for n, ((version, file), index) in enumerate(needs.items())
        )
        verdef = b"".join(
            struct.pack("<HHHHIII", 1, 0, index, 1, 0, 20, 28 if n < len(defines) - 1 else 0)
            + struct.pack("<II", self._name(version), 0)
            for n, (version, index) in enumerate(defines.items())
        )
        tags = [(1, self._name(name)) for name in self.needed]
        tags += [(29, self._name(self.runpath))] if self.runpath else []
        parts = {
            6: b"".join(symbols),
            4: struct.pack("<II", 1, len(symbols)) + bytes(4 * (len(symbols) + 1)),
            0x6FFFFFF0: struct.pack(f"<{len(versions)}H", *versions),
            0x6FFFFFFE: verneed,
            0x6FFFFFFC: verdef,
            5: bytes(self._strings),
        }
        made = b""
        for tag, data in parts.items():
            tags += [(tag, start + len(made))] if data else []
            made += data
        tags += [(11, 24), (10, len(self._strings))]
        tags += [(0x6FFFFFFF, len(needs)), (0x6FFFFFFD, len(defines)), (0, 0)]
        dynamic = b"".join(struct.pack("<QQ", *pair) for pair in tags)
        return made, dynamic


def fat_binary(target: str) -> bytes:
    """A fat binary with one piece of code for ``target``, as nvcc writes it."""
    kind, _, name = target.partition("_")
    sm = int(name.rstrip("af"))
    flags = 0x11 | {"a": 1 << 20, "f": 1 << 21}.get(name[-1], 0)
    code = bytes(16)
    number = 1 if kind == "compute" else 2
    entry = struct.pack("<HHIQIIHHIII", number, 0x101, 64, len(code), 0, 0, 0, 1, sm, 0, 0)
    entry += struct.pack("<QQQ", flags, 0, 0) + code
    return struct.pack("<4sHHQ", b"\x50\xed\x55\xba", 1, 16, len(entry)) + entry


def wheel(
    folder: Path,
    filename: str,
    files: Mapping[str, Elf | bytes],
    *,
    requires: tuple[str, ...] | None = None,
) -> Wheel:
    """Make a wheel of ``files`` in ``folder``; returns it as it is locked."""
    path = folder / filename
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            data = content.build() if isinstance(content, Elf) else content
            archive.writestr(zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0)), data)
    name, version = filename.split("-")[:2]
    return Wheel(
        name=name.replace("_", "-"),
        version=version,
        filename=filename,
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        size=path.stat().st_size,
        index=FIND_LINKS,
        requires=requires,
    )
