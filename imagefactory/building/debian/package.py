"""Reads ``.deb`` files: an ar archive of two tar archives.

python-debian would do the same, but its licence (GPL) is not ours, and the format is small.
"""

from __future__ import annotations

import gzip
import io
import lzma
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from imagefactory.building.tree import Content, Entry, Kind, Slice, permissions
from imagefactory.errors import FactoryError, InputError, fail
from imagefactory.system import zstd

_MAGIC = b"!<arch>\n"
_HEADER = 60
_PIECE = 1 << 22
_KINDS = {
    tarfile.REGTYPE: Kind.FILE,
    tarfile.AREGTYPE: Kind.FILE,
    tarfile.LNKTYPE: Kind.FILE,
    tarfile.DIRTYPE: Kind.FOLDER,
    tarfile.SYMTYPE: Kind.SYMLINK,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A Debian package, read.

    Attributes:
        fields: of its control file, in the file's order; values keep their continuation lines.
        control: the other files of the control archive (``postinst``, ``md5sums`` …) by name.
        paths: every path of the package, in the archive's order, as dpkg lists them (``/.``).
        entries: what those paths are, without the root; keys have no leading slash.
    """

    file: Path
    fields: Mapping[str, str]
    control: Mapping[str, bytes]
    paths: tuple[str, ...]
    entries: Mapping[str, Entry]

    @property
    def name(self) -> str:
        """The package's name, without architecture."""
        return self.fields["Package"]

    @property
    def arch(self) -> str:
        """``all`` or Debian's name of an architecture."""
        return self.fields["Architecture"]

    @property
    def database_name(self) -> str:
        """What dpkg calls its files in ``info``."""
        same = self.fields.get("Multi-Arch") == "same"
        return f"{self.name}:{self.arch}" if same else self.name

    def script(self, name: str) -> str | None:
        """The text of a maintainer script; None if the package has none of that name."""
        data = self.control.get(name)
        return None if data is None else data.decode(errors="surrogateescape")


def read(path: Path, spool: Path) -> Package:
    """Read the package file ``path``; file contents are unpacked to the new file ``spool``.

    Raises InputError if it is not a Debian package, is damaged, or is compressed with anything but
    xz, gzip or zstd.
    """
    try:
        return _read(path, spool)
    except FactoryError:
        raise
    except (OSError, ValueError, EOFError, lzma.LZMAError, tarfile.TarError, KeyError) as error:
        raise fail(
            InputError,
            "deb-damaged",
            f"this is not a readable Debian package: {error or type(error).__name__}",
            where=str(path),
            fix="remove the file, so that it is downloaded again",
        ) from error


def _read(path: Path, spool: Path) -> Package:
    parts = dict(_members(path))
    control = dict(_control(b"".join(_unpacked(path, parts, "control"))))
    with spool.open("wb") as stream:
        stream.writelines(_unpacked(path, parts, "data"))
    fields = paragraph(control.pop("control", b"").decode())
    if missing := {"Package", "Version", "Architecture"} - fields.keys():
        raise ValueError(f"its control file lacks {', '.join(sorted(missing))}")
    paths, entries = _entries(fields["Package"], spool)
    return Package(file=path, fields=fields, control=control, paths=paths, entries=entries)


def paragraph(text: str) -> dict[str, str]:
    """The fields of one paragraph of a control file.

    Continuation lines are kept as they are. Raises ValueError for a line that is neither.
    """
    fields: dict[str, str] = {}
    name = ""
    for line in text.strip("\n").splitlines():
        if line[:1] in {" ", "\t"} and name:
            fields[name] += "\n" + line
        else:
            name, colon, value = line.partition(":")
            if not colon:
                raise ValueError(f"not a control field: {line!r}")
            fields[name] = value.strip()
    return fields


def _members(path: Path) -> Iterator[tuple[str, bytes]]:
    """The names and contents of an ar archive."""
    data = path.read_bytes()
    if not data.startswith(_MAGIC):
        raise ValueError("it is not an ar archive")
    at = len(_MAGIC)
    while at + _HEADER <= len(data):
        header = data[at : at + _HEADER]
        size = int(header[48:58])
        at += _HEADER
        if at + size > len(data):
            raise ValueError("it is cut off")
        yield header[:16].decode().rstrip(" ").rstrip("/"), data[at : at + size]
        at += size + size % 2


def _unpacked(path: Path, parts: Mapping[str, bytes], name: str) -> Iterator[bytes]:
    """The uncompressed tar archive ``name`` of a package, in pieces."""
    found = next((part for part in parts if part.startswith(f"{name}.tar")), None)
    if found is None:
        raise ValueError(f"it has no {name}.tar")
    match found.removeprefix(f"{name}.tar"):
        case ".xz":
            yield from _decompressed(parts[found])
        case ".gz":
            yield gzip.decompress(parts[found])
        case ".zst":
            yield zstd.decompress(parts[found])
        case "":
            yield parts[found]
        case other:
            raise fail(
                InputError,
                "deb-compression",
                f"{found} is compressed with {other[1:]}; only xz, gzip and zstd are supported",
                where=str(path),
                fix="use Debian's own packages, or a base image from a registry",
            )


def _decompressed(data: bytes) -> Iterator[bytes]:
    """Large pieces: other threads run only while one is being decompressed."""
    decompressor = lzma.LZMADecompressor()
    while not decompressor.eof:
        if not (piece := decompressor.decompress(data, _PIECE)) and not data:
            raise ValueError("it is cut off")
        yield piece
        data = b""


def _control(data: bytes) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            content = archive.extractfile(member) if member.isreg() else None
            if content:
                yield member.name.removeprefix("./"), content.read()


def _entries(package: str, spool: Path) -> tuple[tuple[str, ...], dict[str, Entry]]:
    paths: list[str] = []
    entries: dict[str, Entry] = {}
    with tarfile.open(spool) as archive:
        for member in archive:
            path = member.name.removeprefix(".").strip("/")
            paths.append(f"/{path}" if path else "/.")
            if path:
                entries[path] = _entry(package, member, spool, entries)
    return tuple(paths), entries


def _entry(package: str, member: tarfile.TarInfo, spool: Path, seen: dict[str, Entry]) -> Entry:
    kind = _KINDS.get(member.type)
    if kind is None or ".." in member.name.split("/"):
        raise ValueError(f"{member.name} is neither a file, a folder nor a link inside the image")
    link = member.linkname if kind is Kind.SYMLINK else ""
    content: bytes | Content = b""
    inode = ""
    if member.islnk():
        other = member.linkname.removeprefix(".").strip("/")
        first = seen[other]
        inode = first.inode or f"{package}:{other}"
        seen[other] = _linked(first, inode)
        content = first.content
    elif kind is Kind.FILE and member.size:
        content = Slice(path=spool, offset=member.offset_data, size=member.size)
    return Entry(
        kind=kind,
        mode=permissions(member.mode),
        uid=member.uid,
        gid=member.gid,
        content=content,
        target=link,
        package=package,
        inode=inode,
    )


def _linked(entry: Entry, inode: str) -> Entry:
    return Entry(
        kind=entry.kind,
        mode=entry.mode,
        uid=entry.uid,
        gid=entry.gid,
        content=entry.content,
        package=entry.package,
        inode=inode,
    )
