"""What an image consists of: its blobs, where they are stored, and which of them are manifests."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

from imagefactory.errors import CheckFailedError, FactoryError, fail
from imagefactory.system import manifests
from imagefactory.system import reference as references
from imagefactory.system.manifests import Descriptor, Document, Manifest

#: Bytes that a manifest or configuration may have, by the specification.
LARGEST = 4 << 20
#: How deep indexes may be nested.
DEEPEST = 4
#: Where blobs are in an OCI layout.
BLOBS = "blobs/sha256"


class Store(Protocol):
    """Has blobs, by digest."""

    def size(self, digest: str) -> int | None:
        """The bytes of a blob; None if it is not there."""

    def open(self, digest: str) -> IO[bytes]:
        """A blob that is there, for reading."""


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder with one file for each blob, named by its SHA-256."""

    path: Path

    def size(self, digest: str) -> int | None:
        """As the protocol says."""
        try:
            return self._file(digest).stat().st_size
        except OSError:
            return None

    def open(self, digest: str) -> IO[bytes]:
        """As the protocol says."""
        return self._file(digest).open("rb")

    def _file(self, digest: str) -> Path:
        return self.path / digest.removeprefix("sha256:")


@dataclass(frozen=True, slots=True)
class Archive:
    """An OCI layout in a tar archive."""

    file: tarfile.TarFile
    members: Mapping[str, tarfile.TarInfo]

    def size(self, digest: str) -> int | None:
        """As the protocol says."""
        found = self.members.get(f"{BLOBS}/{digest.removeprefix('sha256:')}")
        return found.size if found else None

    def open(self, digest: str) -> IO[bytes]:
        """As the protocol says."""
        found = self.file.extractfile(f"{BLOBS}/{digest.removeprefix('sha256:')}")
        if found is None:
            raise FileNotFoundError(digest)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """An image by its blobs.

    Attributes:
        name: its tag; empty if it has none.
        digest: of its manifest or index.
        platform: OCI platform of its first manifest.
        configs: digests of its configurations.
        manifests: media type of each manifest, by digest; that of the image is the first.
        blobs: bytes of everything that it consists of, by digest; manifests come first.
        store: has the blobs.
    """

    name: str
    digest: str
    platform: str
    configs: tuple[str, ...]
    manifests: Mapping[str, str]
    blobs: Mapping[str, int]
    store: Store = field(repr=False)

    @property
    def digests(self) -> tuple[str, ...]:
        """Digests by which engines know it; those without containerd's store use the second."""
        return self.digest, *self.configs

    @property
    def image_manifest(self) -> str:
        """Digest of its manifest, or that of the first image of an index."""
        for digest in self.manifests:
            with self.store.open(digest) as file:
                if json.load(file).get("config", {}).get("digest") == self.configs[0]:
                    return digest
        raise ValueError("an image without a manifest")


@dataclass(slots=True)
class _Found:
    manifests: dict[str, str] = field(default_factory=dict)
    configs: dict[str, str] = field(default_factory=dict)
    blobs: dict[str, int] = field(default_factory=dict)


def read(store: Store, digest: str, name: str) -> Content:
    """The image with a ``digest``. Of an index, platforms that the store lacks are left out.

    Raises CheckFailedError ``content-missing`` if blobs are missing or of another size,
    ``content-damaged`` if a manifest is not what its digest says.
    """
    found = _Found()
    _walk(store, digest, name or digest, found, DEEPEST)
    return Content(
        name=name,
        digest=digest,
        platform=next(iter(found.configs.values())),
        configs=tuple(found.configs),
        manifests=found.manifests,
        blobs={one: found.blobs[one] for one in [*found.manifests, *found.blobs]},
        store=store,
    )


def _walk(store: Store, digest: str, name: str, found: _Found, depth: int) -> None:
    content, row = _json(store, digest, name)
    manifest = _understood(digest, content, row, name)
    kind = "index" if manifest.config is None else "manifest"
    media_type = manifest.media_type or f"application/vnd.oci.image.{kind}.v1+json"
    found.manifests[digest] = media_type
    found.blobs[digest] = len(content)
    if manifest.config is None:
        _walk_children(store, manifest.manifests, name, found, depth)
        return
    for part in (manifest.config, *manifest.layers):
        size = store.size(part.digest) if references.is_digest(part.digest) else None
        if size != part.size:
            raise _missing(name, part.digest)
        found.blobs[part.digest] = part.size
    _, config = _json(store, manifest.config.digest, name)
    found.configs[manifest.config.digest] = f"{config.get('os')}/{config.get('architecture')}"


def _walk_children(
    store: Store, children: tuple[Descriptor, ...], name: str, found: _Found, depth: int
) -> None:
    """Read what an index lists; one complete image suffices."""
    first: Exception | None = None
    # images before what is attached to them, whose platform is `unknown/unknown`
    for child in sorted(children, key=lambda one: one.platform.startswith("unknown")):
        part = _Found()
        try:
            if not depth or not references.is_digest(child.digest):
                raise _damaged(name, f"its index lists {child.digest[:80]!r}")
            _walk(store, child.digest, name, part, depth - 1)
        except CheckFailedError as error:
            first = first or error
            continue
        found.manifests |= part.manifests
        found.configs |= part.configs
        found.blobs |= part.blobs
    if not found.configs:
        raise first or _damaged(name, "its index is empty")


def _json(store: Store, digest: str, name: str) -> tuple[bytes, dict[str, Any]]:
    size = store.size(digest)
    if size is None:
        raise _missing(name, digest)
    if size > LARGEST:
        raise _damaged(name, f"{digest} has {size} bytes, too many for a manifest")
    with store.open(digest) as file:
        content = file.read()
    if manifests.digest_of(content) != digest:
        raise _damaged(name, f"{digest} has other content")
    try:
        row = json.loads(content)
    except (ValueError, RecursionError):
        row = None
    if not isinstance(row, dict):
        raise _damaged(name, f"{digest} is no manifest")
    return content, row


def _understood(digest: str, content: bytes, row: dict[str, Any], name: str) -> Manifest:
    media_type = str(row.get("mediaType", ""))
    document = Document(digest=digest, media_type=media_type, content=content, row=row)
    try:
        return manifests.read(document)
    except ValueError as error:
        raise _damaged(name, f"{digest} is no manifest: {error}") from None


def chunks(file: IO[bytes], size: int = 1 << 20) -> Iterator[bytes]:
    """The rest of a file, in pieces."""
    while piece := file.read(size):
        yield piece


def _missing(name: str, digest: str) -> FactoryError:
    what = f"{name} is incomplete: {digest[:80]} is not there as a whole"
    fix = "build, pull or save the image again"
    return fail(CheckFailedError, "content-missing", what, fix=fix)


def _damaged(name: str, why: str) -> FactoryError:
    fix = "save the image again where it came from"
    what = f"{name} is damaged: {why}"
    return fail(CheckFailedError, "content-damaged", what, fix=fix)
