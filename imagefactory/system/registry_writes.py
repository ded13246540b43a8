"""What is written to registries: names, small blobs, what is attached to an image, and removals.

Images themselves are sent by the engine. Every function may be called again after it was cut off.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from imagefactory.system import registry_failures
from imagefactory.system.manifests import Descriptor, Document, digest_of
from imagefactory.system.registry import Body, Registries, tail_of
from imagefactory.system.registry_failures import error_of
from imagefactory.system.registry_names import Name, parse

_OCI = "application/vnd.oci"
IMAGE, INDEX = f"{_OCI}.image.manifest.v1+json", f"{_OCI}.image.index.v1+json"
#: How often the list of a fallback tag is written, if others write it at the same time.
TRIES = 3
#: The configuration of what is no image.
_EMPTY, _EMPTY_KIND = b"{}", f"{_OCI}.empty.v1+json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """Something about an image that is kept beside it.

    Attributes:
        kind: artifact type, by which it is found.
        media_type: of its content.
        content: at most what one answer of a registry may have.
        annotations: what is shown of it without reading it.
    """

    kind: str
    media_type: str
    content: bytes
    annotations: Mapping[str, str]


def document(row: Mapping[str, object], media_type: str) -> Document:
    """A manifest of our own; equal rows are equal bytes."""
    content = json.dumps(row, sort_keys=True, separators=(",", ":")).encode()
    return Document(
        digest=digest_of(content), media_type=media_type, content=content, row=dict(row)
    )


def put_manifest(registries: Registries, reference: str, found: Document) -> None:
    """Store a manifest whose blobs the repository has under ``reference``: one request.

    For a manifest that is there already, this gives it one more name; no blob moves.
    """
    name = parse(reference)
    body = Body(content=found.content, media_type=found.media_type)
    if registries.ask(name, f"/manifests/{name.wanted}", method="PUT", body=body) is None:
        raise _missing(name)


def put_blob(registries: Registries, repository: str, content: bytes) -> str:
    """Store a small blob, unless it is there; its digest."""
    name, digest = parse(repository), digest_of(content)
    if registries.has_blob(repository, digest):
        return digest
    begun = registries.ask(name, "/blobs/uploads/", method="POST")
    if begun is None:
        raise _missing(name)
    try:
        at = tail_of(name, "/blobs/uploads/", begun.headers.get("Location"))
    except ValueError:
        at = None
    if at is None:
        said = f"{name.host}: it does not say where to upload to"
        raise error_of(registry_failures.OTHER, name.host, name.path, said)
    target = f"{at.removesuffix('?')}{'&' if at.partition('?')[2] else '?'}digest={quote(digest)}"
    body = Body(content=content, media_type="application/octet-stream")
    registries.ask(name, target, method="PUT", body=body)
    return digest


def attach(
    registries: Registries, repository: str, subject: Document, attachments: Sequence[Attachment]
) -> None:
    """Attach to the image ``subject`` what is not attached already.

    A registry without the referrers API gets the fallback tag of the OCI specification, by one
    request. It is read right before and after: another machine may write it at the same time.
    """
    made = {found.digest: (found, one) for one in attachments for found in [_made(subject, one)]}
    missing = made.keys() - _attached(registries, repository, subject)
    new = [made[digest] for digest in made if digest in missing]
    for content in dict.fromkeys(content for _, one in new for content in (_EMPTY, one.content)):
        put_blob(registries, repository, content)
    for found, _ in new:
        put_manifest(registries, f"{repository}@{found.digest}", found)
    for _ in range(TRIES):
        there = registries.referrers(repository, subject.digest) if missing else ()
        missing -= {one.digest for one in there}
        if not missing:
            return
        rows = [*map(_row_of, there), *(_listed(*made[one]) for one in made if one in missing)]
        index = document({"schemaVersion": 2, "mediaType": INDEX, "manifests": rows}, INDEX)
        put_manifest(registries, f"{repository}:{fallback_tag(subject.digest)}", index)
    missing -= _attached(registries, repository, subject)
    if missing:
        name = parse(repository)
        said = f"{name.host}: what was attached to {subject.digest[:19]} is not listed"
        raise error_of(registry_failures.OTHER, name.host, name.path, said)


def _attached(registries: Registries, repository: str, subject: Document) -> set[str]:
    return {one.digest for one in registries.referrers(repository, subject.digest)}


def _made(subject: Document, one: Attachment) -> Document:
    row = {
        "schemaVersion": 2,
        "mediaType": IMAGE,
        "artifactType": one.kind,
        "config": _descriptor(_EMPTY_KIND, _EMPTY),
        "layers": [_descriptor(one.media_type, one.content)],
        "subject": {
            "mediaType": subject.media_type,
            "digest": subject.digest,
            "size": len(subject.content),
        },
        "annotations": dict(one.annotations),
    }
    return document(row, IMAGE)


def _listed(made: Document, one: Attachment) -> dict[str, object]:
    """The row of an attachment in the list that the fallback tag names."""
    row = _descriptor(IMAGE, made.content)
    return {**row, "artifactType": one.kind, "annotations": dict(one.annotations)}


def delete(registries: Registries, repository: str, digest: str) -> bool:
    """Remove a manifest with all of its tags; whether it was there.

    Raises RegistryError ``registry-cannot`` for a registry that removes nothing.
    """
    name = parse(repository)
    return registries.ask(name, f"/manifests/{digest}", method="DELETE") is not None


def fallback_tag(digest: str) -> str:
    """The tag that lists what is attached to ``digest``."""
    return digest.replace(":", "-")


def _descriptor(kind: str, content: bytes) -> dict[str, object]:
    return {"mediaType": kind, "digest": digest_of(content), "size": len(content)}


def _row_of(one: Descriptor) -> dict[str, object]:
    row: dict[str, object] = {
        "mediaType": one.media_type,
        "digest": one.digest,
        "size": one.size,
        "annotations": dict(one.annotations),
    }
    return {**row, "artifactType": one.artifact_type} if one.artifact_type else row


def _missing(name: Name) -> Exception:
    said = f"{name.host}: HTTP 404 for {name.path}"
    return error_of(registry_failures.of_status(404), name.host, name.path, said)
