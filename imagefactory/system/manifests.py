"""Manifests and their descriptors, as registries answer with them. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptor:
    """What a manifest or an index says about something that it refers to.

    Attributes:
        digest: ``sha256:...``.
        media_type: its kind.
        size: its bytes, as the registry stores them.
        platform: OCI platform of an index's manifest; empty for anything else.
        artifact_type: kind of artifact, of a referrer.
        annotations: what its maker noted.
    """

    digest: str
    media_type: str
    size: int
    platform: str = ""
    artifact_type: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a registry has under a reference: an image, or an index of several.

    Attributes:
        digest: SHA-256 of the manifest itself.
        media_type: its kind.
        size: its own bytes.
        config: the image's configuration; None for an index.
        layers: the image's layers, bottom first; none for an index.
        manifests: the manifests of an index; none for an image.
    """

    digest: str
    media_type: str
    size: int
    config: Descriptor | None
    layers: tuple[Descriptor, ...]
    manifests: tuple[Descriptor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A manifest as it came: ``digest`` is the SHA-256 of ``content``, and ``row`` its JSON."""

    digest: str
    media_type: str
    content: bytes
    row: Mapping[str, Any]


def digest_of(content: bytes) -> str:
    """The digest of a blob or manifest."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def read(found: Document) -> Manifest:
    """The manifest in a document. Raises ValueError if it cannot be read."""
    return Manifest(
        digest=found.digest,
        media_type=found.media_type,
        size=len(found.content),
        config=next(iter(descriptors([found.row.get("config")])), None),
        layers=descriptors(found.row.get("layers")),
        manifests=descriptors(found.row.get("manifests")),
    )


def descriptors(found: object) -> tuple[Descriptor, ...]:
    """The descriptors in a list, which may be missing. Raises ValueError for anything else."""
    try:
        return tuple(_descriptor(row) for row in rows(found) if row is not None)
    except (KeyError, TypeError, AttributeError, OverflowError):
        raise ValueError("a descriptor is malformed") from None


def rows(found: object) -> list[Any]:
    """A list of an answer, which may be missing. Raises ValueError for anything else."""
    if found is not None and not isinstance(found, list):
        raise ValueError("a list is none")
    return found or []


def _descriptor(row: Mapping[str, Any]) -> Descriptor:
    platform = row.get("platform") or {}
    size = int(row.get("size", 0))
    if size < 0:
        raise ValueError("a size is below zero")
    return Descriptor(
        digest=str(row["digest"]),
        media_type=str(row.get("mediaType", "")),
        size=size,
        platform=f"{platform['os']}/{platform['architecture']}" if platform else "",
        artifact_type=str(row.get("artifactType", "")),
        annotations=dict(row.get("annotations") or {}),
    )
