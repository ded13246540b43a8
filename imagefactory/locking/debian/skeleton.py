"""What an image of a registry has: all of its paths, and the files that package tools keep.

Read once from the image's layers, then kept in the cache. No file is run or unpacked.
"""

from __future__ import annotations

import io
import re
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from imagefactory.errors import FactoryError, SetupError, fail
from imagefactory.settings import Settings
from imagefactory.system import temporary, ui, zstd
from imagefactory.system.manifests import Manifest
from imagefactory.system.registry import Registries

#: The owner's name of files in a skeleton whose content was left out.
LEFT_OUT = "left-out"
STATUS = "var/lib/dpkg/status"
_KEPT = re.compile(
    r"etc/.+|var/lib/(dpkg|pam|shells\.state).*|usr/lib/os-release"
    r"|usr/share/(base-passwd|ca-certificates|debianutils|pam|pam-configs)/.+"
)
_LARGEST = 16 << 20
_OPAQUE, _WHITEOUT = ".wh..wh..opq", ".wh."
_ZSTD = b"\x28\xb5\x2f\xfd"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A path of an image: its header, and its content if that was kept."""

    header: tarfile.TarInfo
    content: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skeleton:
    """The paths of an image, without a leading slash."""

    nodes: dict[str, Node]

    @property
    def status(self) -> str | None:
        """dpkg's list of installed packages; None if the image has no dpkg."""
        node = self.nodes.get(STATUS)
        return node.content.decode(errors="surrogateescape") if node else None

    @property
    def distribution(self) -> dict[str, str]:
        """The fields of os-release, such as ``ID`` and ``VERSION_CODENAME``."""
        node = self.nodes.get("usr/lib/os-release") or self.nodes.get("etc/os-release")
        text = node.content.decode(errors="replace") if node else ""
        rows = (line.partition("=") for line in text.splitlines() if "=" in line)
        return {name.strip(): value.strip().strip("\"'") for name, _, value in rows}


def read(repository: str, digest: str, registries: Registries, settings: Settings) -> Skeleton:
    """The skeleton of the image ``digest``, which is that of one platform.

    Raises SetupError if a layer cannot be read.
    """
    path = settings.cache / "skeletons" / f"{digest.replace(':', '-')}.tar"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.folder(prefix="imagefactory-skeleton-", parent=path.parent) as folder:
            found = _download(repository, digest, registries, folder)
            part = folder / "skeleton"
            _write(found, part)
            part.rename(path)
    return _load(path)


def _download(repository: str, digest: str, registries: Registries, folder: Path) -> Skeleton:
    name = repository.partition("@")[0]
    image = registries.manifest(f"{name}@{digest}")
    if image is None:
        raise _unreadable(f"{name}@{digest}", "the registry does not have it")
    nodes: dict[str, Node] = {}
    with ui.step(f"reading {len(image.layers)} layers of {name}"):
        for layer in _layers(name, image, registries, folder):
            _add(nodes, layer)
    return Skeleton(nodes=nodes)


def _layers(
    name: str, image: Manifest, registries: Registries, folder: Path
) -> Iterator[tarfile.TarFile]:
    for layer in image.layers:
        file = folder / "layer"
        if not registries.save_blob(name, layer.digest, file):
            raise _unreadable(f"{name}@{image.digest}", f"the registry lacks layer {layer.digest}")
        try:
            with _opened(file) as archive:
                yield archive
        except (tarfile.TarError, OSError, EOFError, ValueError, zlib.error) as error:
            why = f"layer {layer.digest} is damaged: {error}"
            raise _unreadable(f"{name}@{image.digest}", why) from None


@contextmanager
def _opened(file: Path) -> Iterator[tarfile.TarFile]:
    with file.open("rb") as stream:
        is_zstd = stream.read(4) == _ZSTD
    if is_zstd:
        with zstd.reader(file) as plain, tarfile.open(fileobj=plain, mode="r|") as archive:
            yield archive
    else:
        with tarfile.open(file, mode="r|*") as archive:
            yield archive


def _add(nodes: dict[str, Node], layer: tarfile.TarFile) -> None:
    """Lay one layer over ``nodes``. Whiteouts remove what lower layers have."""
    added: dict[str, Node] = {}
    for header in layer:
        path = _path(header.name)
        folder, _, name = path.rpartition("/")
        if name == _OPAQUE:
            _remove(nodes, f"{folder}/")
        elif name.startswith(_WHITEOUT):
            gone = f"{folder}/{name.removeprefix(_WHITEOUT)}".lstrip("/")
            nodes.pop(gone, None)
            _remove(nodes, f"{gone}/")
        elif path and not path.split("/")[0].startswith(".."):
            old = nodes.get(path)
            if old and old.header.isdir() and not header.isdir():
                _remove(nodes, f"{path}/")
            added[path] = _node(header, layer, added, nodes)
    nodes |= added


def _node(
    header: tarfile.TarInfo,
    layer: tarfile.TarFile,
    added: dict[str, Node],
    nodes: dict[str, Node],
) -> Node:
    if header.islnk():
        other = _path(header.linkname)
        first = added.get(other) or nodes.get(other)
        if first:
            return first
    if header.isreg() and _KEPT.fullmatch(_path(header.name)) and header.size <= _LARGEST:
        stream: IO[bytes] | None = layer.extractfile(header)
        return Node(header=header, content=stream.read() if stream else b"")
    return Node(header=header)


def _path(name: str) -> str:
    """The path of a member of an archive, or of what a hard link names."""
    return "/".join(part for part in name.split("/") if part not in ("", "."))


def _remove(nodes: dict[str, Node], prefix: str) -> None:
    for path in [path for path in nodes if path.startswith(prefix)]:
        del nodes[path]


def _write(found: Skeleton, target: Path) -> None:
    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as archive:
        for path, node in sorted(found.nodes.items()):
            row = tarfile.TarInfo(path)
            known = node.header
            row.type = tarfile.REGTYPE if known.isreg() or known.islnk() else known.type
            row.mode, row.uid, row.gid = known.mode, known.uid, known.gid
            row.linkname = known.linkname if known.issym() else ""
            row.uname = LEFT_OUT if known.size and not node.content else ""
            row.size = len(node.content)
            archive.addfile(row, io.BytesIO(node.content))


def _load(path: Path) -> Skeleton:
    nodes = {}
    with tarfile.open(path) as archive:
        for header in archive:
            stream = archive.extractfile(header) if header.isreg() and header.size else None
            nodes[header.name] = Node(header=header, content=stream.read() if stream else b"")
    return Skeleton(nodes=nodes)


def _unreadable(reference: str, why: str) -> FactoryError:
    fix = "try again later, or use another image"
    return fail(SetupError, "base-unreadable", f"{reference} cannot be read: {why}", fix=fix)
