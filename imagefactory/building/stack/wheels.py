"""What a wheel installs, as a tree: nothing is unpacked until its layer is written."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import posixpath
import struct
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from installer import install
from installer.destinations import WheelDestination
from installer.records import RecordEntry, parse_record_file
from installer.scripts import Script
from installer.sources import WheelFile
from installer.utils import construct_record_file, fix_shebang
from isal import igzip_lib, isal_zlib
from packaging.utils import canonicalize_name

from imagefactory.building.tree import CHUNK, Entry, Kind, Tree
from imagefactory.errors import SetupError, fail
from imagefactory.inbuild.layer import SITE, VENV

if TYPE_CHECKING:
    from installer.scripts import ScriptSection
    from installer.sources import WheelContentElement
    from installer.utils import Scheme

#: The interpreter of the image.
PYTHON = f"/{VENV}/bin/python"
#: What every ``.dist-info`` gets beside the files of the wheel.
ADDED = {"INSTALLER": b"imagefactory", "REQUESTED": b""}
FILE, PROGRAM = 0o644, 0o755
#: Compressed bytes that are inflated at a time; with larger pieces, processors' caches miss.
PIECE = 1 << 17
#: Bytes; what is larger is no script, but a program.
LARGEST_SCRIPT = 1 << 20


@dataclass(frozen=True, slots=True)
class Member:
    """A file in a wheel that is open; ``key`` is the paths of both."""

    archive: zipfile.ZipFile = field(compare=False)
    info: zipfile.ZipInfo = field(compare=False)
    key: tuple[str, str]

    @property
    def size(self) -> int:
        """Its bytes."""
        return self.info.file_size

    def chunks(self) -> Iterator[bytes]:
        """Its content, in pieces. Raises zipfile.BadZipFile if it is damaged."""
        if self.info.compress_type != zipfile.ZIP_DEFLATED:
            with self.archive.open(self.info) as stream:
                while chunk := stream.read(CHUNK):
                    yield chunk
            return
        crc, size = 0, 0
        for piece in self._inflated():
            crc, size = isal_zlib.crc32(piece, crc), size + len(piece)
            yield piece
        if (crc, size) != (self.info.CRC, self.info.file_size):
            raise zipfile.BadZipFile(f"{self.info.filename} is damaged")

    def _inflated(self) -> Iterator[bytes]:
        """The content, by ISA-L: zlib would take longer than everything else together."""
        inflate = isal_zlib.decompressobj(-15)
        # another file object, because the archive may be read by several threads
        with open(self.key[0], "rb", buffering=0) as file:  # noqa: PTH123 - a tenth of the time
            file.seek(self.info.header_offset)
            name, extra = struct.unpack("<26xHH", file.read(30))
            file.seek(name + extra, os.SEEK_CUR)
            left = self.info.compress_size
            try:
                while left:
                    data = file.read(min(left, PIECE))
                    left -= len(data) or left  # what is cut off fails the check of the size
                    yield inflate.decompress(data)
                yield inflate.flush()
            except igzip_lib.IsalError as error:  # type: ignore[misc] # it has no types
                raise zipfile.BadZipFile(f"{self.info.filename}: {error}") from None


class _Stream(io.BytesIO):
    """Stands for a member that is not read while the tree is made."""

    def __init__(self, member: Member, record: tuple[str, str, str]) -> None:
        super().__init__()
        self.member, self.record = member, record


class _Source(WheelFile):
    """A wheel that yields its members without reading them.

    Compiled Python is not yielded, because ``installer`` refuses it; it is in ``compiled``.
    """

    def __init__(self, archive: zipfile.ZipFile) -> None:
        super().__init__(archive)
        self.archive = archive
        self.compiled: dict[str, Member] = {}

    @property
    def dist_info_filenames(self) -> list[str]:
        """Names of the files in ``.dist-info``."""
        start = f"{self.dist_info_dir}/"
        names = self.archive.namelist()
        return [name[len(start) :] for name in names if name.startswith(start) and name != start]

    def get_contents(self) -> Iterator[WheelContentElement]:
        rows = parse_record_file(self.read_dist_info("RECORD").splitlines())
        records = {row[0]: row for row in rows}
        for info in self.archive.infolist():
            name = info.filename
            member = Member(self.archive, info, key=(str(self.archive.filename), info.filename))
            if info.is_dir():
                continue
            if name.startswith("/") or ".." in name.split("/"):
                raise ValueError(f"{name} leaves the folder of packages")
            if "__pycache__" in name.split("/"):
                self.compiled[name] = member
                continue
            row = records.get(name, (name, "", ""))
            # wheels may have modes without the type of the file, which uv accepts, too
            executable = bool(info.external_attr >> 16 & 0o111)
            yield row, cast("BinaryIO", _Stream(member, row)), executable


class _Destination(WheelDestination):
    """Puts what a wheel installs into a tree."""

    def __init__(self, tree: Tree, python: str, project: str) -> None:
        self._tree, site = tree, SITE.format(python=python)
        self._folders = {
            "purelib": site,
            "platlib": site,
            "scripts": f"{VENV}/bin",
            "data": VENV,
            "headers": f"{VENV}/include/site/python{python}/{project}",
        }

    def write_file(
        self, scheme: Scheme, path: str | os.PathLike[str], stream: BinaryIO, is_executable: bool
    ) -> RecordEntry:
        name = os.fspath(path)
        full = f"{self._folders[scheme]}/{name}"
        mode = PROGRAM if is_executable or scheme == "scripts" else FILE
        if not isinstance(stream, _Stream):
            return self._write(full, name, stream.read(), mode)
        if scheme == "scripts" and stream.member.size <= LARGEST_SCRIPT:
            data = b"".join(stream.member.chunks())
            with fix_shebang(io.BytesIO(data), PYTHON) as fixed:
                return self._write(full, name, fixed.read(), mode)
        self._tree.put(full, Entry(kind=Kind.FILE, mode=mode, content=stream.member))
        return RecordEntry.from_elements(name, *stream.record[1:])

    def write_script(
        self, name: str, module: str, attr: str, section: ScriptSection
    ) -> RecordEntry:
        _, data = Script(name, module, attr, section).generate(PYTHON, "posix")
        return self._write(f"{self._folders['scripts']}/{name}", name, data, PROGRAM)

    def _write(self, full: str, path: str, data: bytes, mode: int) -> RecordEntry:
        self._tree.put(full, Entry(kind=Kind.FILE, mode=mode, content=data))
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
        return RecordEntry.from_elements(path, f"sha256={digest}", str(len(data)))

    def finalize_installation(
        self, scheme: Scheme, record_file_path: str, records: Iterable[tuple[Scheme, RecordEntry]]
    ) -> None:
        def prefix(of: Scheme) -> str | None:
            if of == scheme:
                return None
            return posixpath.relpath(self._folders[of], self._folders[scheme]) + "/"

        with construct_record_file(records, prefix) as stream:
            data = stream.read()
        path = posixpath.join(self._folders[scheme], record_file_path)
        self._tree.put(path, Entry(kind=Kind.FILE, mode=FILE, content=data))


def install_all(paths: Iterable[Path], python: str, opened: ExitStack) -> Tree:
    """The tree that the wheels ``paths`` install for ``python``, such as 3.13.

    Its files are read from the wheels, which are open as long as ``opened``. Where wheels have the
    same file, the last one's counts. Raises SetupError for a file that is not a wheel.
    """
    tree, site = Tree(), SITE.format(python=python)
    for path in paths:
        try:
            archive = opened.enter_context(zipfile.ZipFile(path))
            source = _Source(archive)
            project = canonicalize_name(source.distribution)
            install(source, _Destination(tree, python, project), dict(ADDED))
        except (zipfile.BadZipFile, ValueError, KeyError, AssertionError) as error:
            what = f"{path.name} cannot be installed: {type(error).__name__}: {error}"
            raise fail(SetupError, "wheel-broken", what, fix="lock another version") from None
        for name, member in source.compiled.items():
            tree.put(f"{site}/{name}", Entry(kind=Kind.FILE, mode=FILE, content=member))
    return tree
