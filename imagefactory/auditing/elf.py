"""What the dynamic linker reads of a shared library: names, versions, and what it needs.

A library of a gigabyte is read once from its beginning to its end, as it lies compressed in a
wheel, and only the parts that the program headers point to are kept.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from imagefactory.auditing.gpu_code import Finder, GpuCode

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: Enough for the file header and all program headers.
_HEAD = 1 << 14
#: The most that is kept of one segment: a first one may include the code, far behind the symbols.
_MOST = 64 << 20
_CHUNK = 1 << 20
#: Where the file header says that there are sections, whose table is at the end of the file.
_SECTIONS = (slice(40, 48), slice(60, 62))
_LOCAL, _WEAK = 0, 2
_WRITABLE = 2
_VERSION = 0x7FFF
#: Versions that no library needs or defines as many of: a count that is damaged ends nowhere.
_MOST_VERSIONS = 10_000
#: Tables that may follow that of the symbols.
_TABLES = ("DT_STRTAB", "DT_VERSYM", "DT_VERNEED", "DT_VERDEF", "DT_RELA", "DT_JMPREL")


class UnreadableError(ValueError):
    """A file is no shared library that can be judged; the message says why."""


@dataclass(frozen=True, slots=True)
class Import:
    """A symbol that a library needs from another one, with the version that it wants, if any."""

    name: str
    version: str = ""
    file: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """A shared library as the dynamic linker sees it.

    Attributes:
        machine: architecture, such as ``EM_AARCH64``.
        soname: its own name; empty if it has none.
        needed: names of the libraries that it needs, in order.
        runpath: folders in which they are searched, with ``$ORIGIN``.
        imports: undefined symbols, without weak ones.
        exports: hashes of the symbols that it defines, as eight bytes each, sorted.
        defines: versions of symbols that it defines.
        versions: versions that it needs, by library.
        gpu: its GPU code.
    """

    machine: str
    soname: str
    needed: tuple[str, ...]
    runpath: tuple[str, ...]
    imports: tuple[Import, ...]
    exports: bytes = field(repr=False)
    defines: frozenset[str]
    versions: Mapping[str, tuple[str, ...]]
    gpu: GpuCode


def hashed(names: Iterable[str]) -> NDArray[np.uint64]:
    """Hashes of the names of symbols: eight bytes each, instead of a hundred."""
    import numpy as np  # noqa: PLC0415 - takes 100 ms

    raw = b"".join(hashlib.blake2b(name.encode(), digest_size=8).digest() for name in names)
    return np.frombuffer(raw, dtype="<u8")


def read(stream: Callable[[int], bytes]) -> Library:
    """The library that ``stream`` reads. Raises UnreadableError for what is none."""
    from elftools.common.exceptions import ELFError  # noqa: PLC0415 - only when a file is read
    from elftools.construct import ConstructError  # noqa: PLC0415 - as above

    finder = Finder()
    try:
        kept = _Kept(stream(_CHUNK), finder)
        while data := stream(_CHUNK):
            kept.feed(data)
            finder.feed(data)
        gpu = GpuCode(targets=dict(sorted(finder.targets.items())), damaged=finder.damaged)
        return _Tables(kept).library(gpu)
    except UnreadableError:
        raise
    except (ELFError, ConstructError, ValueError, LookupError, ArithmeticError) as error:
        raise UnreadableError(f"it is not a shared library: {error!r}") from None


class _Kept(io.BytesIO):
    """The parts of a file that were kept. As a file, it has the headers and the dynamic section."""

    def __init__(self, start: bytes, finder: Finder) -> None:
        head = bytearray(start[:_HEAD])
        for span in _SECTIONS:
            head[span] = bytes(len(head[span]))
        super().__init__(bytes(head))
        self.elf = _opened(self)
        segments = [segment.header for segment in self.elf.iter_segments()]
        self.loads = [one for one in segments if one.p_type == "PT_LOAD"]
        dynamic = [one for one in segments if one.p_type == "PT_DYNAMIC"]
        if not dynamic:
            raise UnreadableError("it is not linked dynamically")
        self.dynamic = dynamic[0]
        self._parts = {wanted: bytearray() for wanted in self._ranges()}
        self._size = 0
        self.feed(start)
        finder.feed(start)

    def _ranges(self) -> Iterator[tuple[int, int]]:
        dynamic, first = self.dynamic, min(int(one.p_offset) for one in self.loads)
        yield dynamic.p_offset, dynamic.p_offset + dynamic.p_filesz
        for load in self.loads:
            # the tables are in the first segment, or in writable ones that patchelf added
            if load.p_offset == first or load.p_flags & _WRITABLE:
                yield load.p_offset, load.p_offset + min(load.p_filesz, _MOST)

    def feed(self, data: bytes) -> None:
        """Keep what is wanted of ``data``, which follows what was read before."""
        start, end = self._size, self._size + len(data)
        for (first, last), part in self._parts.items():
            if first < end and start < last:
                part.extend(data[max(first - start, 0) : last - start])
        self._size = end

    def at(self, offset: int, size: int) -> bytes:
        """Bytes of the file. Raises UnreadableError if they were not kept."""
        for (first, _), part in self._parts.items():
            if first <= offset and offset + size <= first + len(part):
                return bytes(part[offset - first : offset - first + size])
        raise UnreadableError(f"its table at {offset:#x} is not where such tables are")


def _opened(file: io.BytesIO) -> Any:
    from elftools.elf.elffile import ELFFile  # noqa: PLC0415 - only when a file is read

    found = ELFFile(file)
    if found.elfclass != 64 or not found.little_endian:
        raise UnreadableError("it is not for a 64-bit little-endian machine")
    return found


class _Tables:
    """The tables that the dynamic section points to."""

    def __init__(self, kept: _Kept) -> None:
        self._kept, self._structs = kept, kept.elf.structs
        self._machine = str(kept.elf.header.e_machine)
        self._entries = list(self._dynamic())
        self._values = dict(self._entries)
        self._strings = self._at(self._values["DT_STRTAB"], self._values["DT_STRSZ"])

    def _dynamic(self) -> Iterator[tuple[str, int]]:
        kind, header = self._structs.Elf_Dyn, self._kept.dynamic
        data, size = self._kept.at(header.p_offset, header.p_filesz), kind.sizeof()
        for at in range(0, len(data) - size + 1, size):
            entry = kind.parse(data[at : at + size])
            if entry.d_tag == "DT_NULL":
                return
            yield str(entry.d_tag), int(entry.d_val)

    def _at(self, address: int, size: int) -> bytes:
        for load in self._kept.loads:
            if load.p_vaddr <= address < load.p_vaddr + load.p_filesz:
                return self._kept.at(load.p_offset + address - load.p_vaddr, size)
        raise UnreadableError(f"no segment has the address {address:#x}")

    def _parse(self, kind: Any, address: int) -> Any:
        return kind.parse(self._at(address, kind.sizeof()))

    def _name(self, offset: int) -> str:
        return self._strings[offset : self._strings.index(0, offset)].decode("utf-8", "replace")

    def library(self, gpu: GpuCode) -> Library:
        """All that is read of the tables."""
        named: dict[str, list[str]] = {}
        for tag, value in self._entries:
            if tag in {"DT_NEEDED", "DT_SONAME", "DT_RPATH", "DT_RUNPATH"}:
                named.setdefault(tag, []).append(self._name(value))
        needs, versions = self._needs()
        imports, exports = self._symbols(needs)
        paths = named.get("DT_RUNPATH") or named.get("DT_RPATH") or []
        return Library(
            machine=self._machine,
            soname=next(iter(named.get("DT_SONAME", ())), ""),
            needed=tuple(named.get("DT_NEEDED", ())),
            runpath=tuple(part for path in paths for part in path.split(":") if part),
            imports=imports,
            exports=exports,
            defines=self._definitions(),
            versions=versions,
            gpu=gpu,
        )

    def _needs(self) -> tuple[dict[int, Import], dict[str, tuple[str, ...]]]:
        """The versions that symbols need: by number, and by library."""
        numbers: dict[int, Import] = {}
        by_file: dict[str, tuple[str, ...]] = {}
        start, count = self._values.get("DT_VERNEED", 0), self._values.get("DT_VERNEEDNUM", 0)
        for at, need in self._linked(self._structs.Elf_Verneed, start, count, "vn_next"):
            file, names = self._name(need.vn_file), []
            rows = self._structs.Elf_Vernaux, at + need.vn_aux, need.vn_cnt, "vna_next"
            for _, one in self._linked(*rows):
                names.append(self._name(one.vna_name))
                numbers[one.vna_other & _VERSION] = Import("", names[-1], file)
            by_file[file] = tuple(sorted(names))
        return numbers, by_file

    def _definitions(self) -> frozenset[str]:
        """The versions that are defined; the first one is the name of the library."""
        found = set()
        start, count = self._values.get("DT_VERDEF", 0), self._values.get("DT_VERDEFNUM", 0)
        for at, one in self._linked(self._structs.Elf_Verdef, start, count, "vd_next"):
            name = self._parse(self._structs.Elf_Verdaux, at + one.vd_aux)
            found.add(self._name(name.vda_name))
        return frozenset(found)

    def _linked(self, kind: Any, at: int, count: int, step: str) -> Iterator[tuple[int, Any]]:
        """The entries of a list with their addresses; each says how far the next one is."""
        if count > _MOST_VERSIONS:
            raise UnreadableError(f"a list of {count} versions is damaged")
        for _ in range(count):
            one = self._parse(kind, at)
            yield at, one
            if not one[step]:
                return
            at += one[step]

    def _symbols(self, needs: Mapping[int, Import]) -> tuple[tuple[Import, ...], bytes]:
        """The undefined symbols, and the hashes of those that are defined."""
        import numpy as np  # noqa: PLC0415 - takes 100 ms

        count = self._count()
        fields = [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2")]
        kind = np.dtype([*fields, ("value", "<u8"), ("size", "<u8")])
        table = np.frombuffer(self._at(self._values["DT_SYMTAB"], count * kind.itemsize), kind)
        binding, defined = table["info"] >> 4, table["section"] != 0
        exports = (self._name(at) for at in table["name"][defined & (binding != _LOCAL)].tolist())
        numbers = np.zeros(count, "<u2")
        if "DT_VERSYM" in self._values:
            numbers = np.frombuffer(self._at(self._values["DT_VERSYM"], count * 2), "<u2")
        wanted = ~defined & (binding != _LOCAL) & (binding != _WEAK)
        rows = zip(table["name"][wanted].tolist(), numbers[wanted].tolist(), strict=True)
        nothing = Import("")
        pairs = ((self._name(at), needs.get(number & _VERSION, nothing)) for at, number in rows)
        imports = tuple(Import(name, need.version, need.file) for name, need in pairs)
        return imports, np.sort(hashed(exports)).tobytes()

    def _count(self) -> int:
        """How many symbols there are, which only the hash table tells."""
        import numpy as np  # noqa: PLC0415 - takes 100 ms

        if "DT_HASH" in self._values:
            return int(np.frombuffer(self._at(self._values["DT_HASH"], 8), "<u4")[1])
        at = self._values["DT_GNU_HASH"]
        buckets, first, bloom, _ = np.frombuffer(self._at(at, 16), "<u4").tolist()
        table = at + 16 + bloom * 8
        last = int(np.frombuffer(self._at(table, buckets * 4), "<u4").max(initial=0))
        if last < first:  # it defines none: what follows the table shows where that ends
            start = self._values["DT_SYMTAB"]
            behind = [v for tag, v in self._entries if tag in _TABLES and v > start]
            return int((min(behind) - start) // self._values["DT_SYMENT"])
        chains = table + buckets * 4
        while not self._at(chains + (last - first) * 4, 1)[0] & 1:
            last += 1
        return last + 1
