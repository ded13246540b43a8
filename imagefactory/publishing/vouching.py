"""Whether an image in a registry is one that passed its verification.

A receipt is found on this machine, or attached to the image: ``push`` attaches it, so that another
machine may move tags too. Of several receipts of one image the latest counts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from imagefactory import __version__
from imagefactory.errors import CheckFailedError, InputError, SetupError, fail
from imagefactory.matrix.moving_tags import MovingTag
from imagefactory.planning.cell_plan import LABEL
from imagefactory.publishing import tags
from imagefactory.system import reference as references
from imagefactory.system import registry_writes, ui
from imagefactory.system.manifests import Descriptor, Document
from imagefactory.system.registry import Registries
from imagefactory.system.registry_writes import Attachment
from imagefactory.verifying import receipt
from imagefactory.verifying.receipt import Level, Receipt, Requirement

RECEIPT = "application/vnd.imagefactory.receipt.v1+json"
#: What a moving tag asks for unless it names a level: that the image passed.
VERIFIED = "verified"
#: Gives, for a torch channel, what a receipt of this version must have.
Requirements = Callable[[str], Sequence[Requirement]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image in a registry.

    Attributes:
        repository: where it is.
        document: its manifest or index.
        config: digest of its configuration.
        labels: its labels.
        platform: OCI platform, such as ``linux/arm64``.
    """

    repository: str
    document: Document
    config: str
    labels: Mapping[str, str]
    platform: str

    @property
    def digest(self) -> str:
        """The digest of its manifest or index."""
        return self.document.digest

    @property
    def name(self) -> str:
        """Its immutable tag; empty if imagefactory did not make it."""
        return str(tags.of_labels(self.labels) or "")

    @property
    def axes(self) -> dict[str, str]:
        """The axes of the cell that it was made from."""
        return tags.axes_of(self.labels, self.platform)


def read_image(registries: Registries, repository: str, wanted: str) -> Image | None:
    """The image with a tag or digest; None if the repository has none."""
    found = registries.document(_named(repository, wanted))
    if found is None:
        return None
    part = registries.understood(found, repository)
    if part.config is None:
        own = [one.digest for one in part.manifests if not one.platform.startswith("unknown")]
        inner = own and references.is_digest(own[0]) and f"{repository}@{own[0]}"
        part = (registries.manifest(inner) if inner else None) or part
    data = registries.read_blob(repository, part.config.digest) if part.config else None
    config = _json(data)
    labels = _json(config.get("config")).get("Labels")
    return Image(
        repository=repository,
        document=found,
        config=part.config.digest if part.config else "",
        labels={str(name): str(value) for name, value in _json(labels).items()},
        platform=f"{config.get('os', '')}/{config.get('architecture', '')}",
    )


def require(
    image: Image, moving: MovingTag, registries: Registries, receipts: Path, needed: Requirements
) -> Receipt:
    """The receipt that vouches for ``image``. Raises CheckFailedError if none does."""
    where = f"{image.repository}@{image.digest[:19]}"
    if not image.name:
        what = f"{where} is no image that imagefactory made: its labels are incomplete"
        raise fail(CheckFailedError, "promote-foreign", what, fix="push it with imagefactory push")
    record = _latest(image, registries, receipts)
    verify = f"imagefactory verify {image.repository}@{image.digest}"
    if record is None:
        what = f"{where} ({image.name}) has no receipt, here or attached to it"
        raise fail(CheckFailedError, "promote-unverified", what, fix=verify)
    wrong = _differences(record, image, needed)
    if wrong:
        what = f"the receipt is not one for {where} ({image.name}): {'; '.join(wrong)}"
        raise fail(CheckFailedError, "promote-receipt", what, fix=verify)
    if not record.passed:
        what = f"{where} ({image.name}) did not pass its last verification: "
        what += ", ".join(record.failed_checks)
        raise fail(CheckFailedError, "promote-failed-verify", what, fix=f"{verify} shows why")
    if moving.level != VERIFIED and not record.level.includes(Level(moving.level)):
        what = f"{moving.template} needs a receipt of level {moving.level!r}, and the receipt of "
        what += f"{where} shows level {str(record.level)!r}"
        fix = f"give it a tag that needs less, or change `level` at {moving.location}"
        raise fail(CheckFailedError, "promote-level", what, fix=fix)
    return record


def attach(registries: Registries, repository: str, digest: str, record: Receipt) -> bool:
    """Attach a receipt to an image; False, with a warning, if the registry does not take it."""
    try:
        found = registries.document(f"{repository}@{digest}")
        if found is not None:
            registry_writes.attach(registries, repository, found, _attachment(record))
    except SetupError as error:
        what = f"the receipt is not attached to {repository}@{digest[:19]}"
        ui.warn(f"{what}, so only this machine can promote it: {error.problems[0].what}")
        return False
    return found is not None


def reference_of(text: str, repository: str) -> tuple[str, str]:
    """Repository and tag or digest of ``text``: a reference, or a tag or digest in ``repository``.

    Raises InputError ``reference-wrong`` if it is none.
    """
    if references.is_digest(text) or references.is_tag(text):
        return repository, text
    found = references.parse(text)
    if not (found.tag or found.digest):
        fix = f"write {text}:TAG or {text}@sha256:..."
        raise fail(InputError, "reference-wrong", f"{text!r} has no tag and no digest", fix=fix)
    name = text.partition("@")[0].removesuffix(f":{found.tag}" if found.tag else "")
    return name, found.digest or found.tag


def _attachment(record: Receipt) -> Attachment:
    content = json.dumps(record.as_dict(), sort_keys=True).encode()
    made = {"org.opencontainers.image.created": record.verified_at}
    return Attachment(kind=RECEIPT, content=content, annotations=made)


def _latest(image: Image, registries: Registries, receipts: Path) -> Receipt | None:
    own = [receipt.load(receipts, digest) for digest in (image.digest, image.config) if digest]
    found = [one for one in [*own, *_attached(image, registries)] if one is not None]
    return max(found, key=lambda one: one.verified_at, default=None)


def _attached(image: Image, registries: Registries) -> Iterator[Receipt]:
    """The receipts that are attached to an image; those that cannot be read are none."""
    for one in registries.referrers(image.repository, image.digest):
        if one.artifact_type == RECEIPT and references.is_digest(one.digest):
            yield from _read(image.repository, one, registries)


def _read(repository: str, one: Descriptor, registries: Registries) -> Iterator[Receipt]:
    manifest = registries.manifest(f"{repository}@{one.digest}")
    for layer in manifest.layers if manifest else ():
        try:
            yield receipt.read(json.loads(registries.read_blob(repository, layer.digest) or b""))
        except (ValueError, KeyError, TypeError, RecursionError):
            continue


def _differences(record: Receipt, image: Image, needed: Requirements) -> list[str]:
    """How ``record`` differs from a receipt of this image.

    The checks of another version of imagefactory were others, so only those of this one are
    compared: an image of last month is one to go back to.
    """
    same = record.version == __version__
    found = [
        Requirement(name=one.name, required=one.required, excusable=False) for one in record.checks
    ]
    return receipt.differences(
        record,
        digest=image.config if record.digest == image.config else image.digest,
        cell=image.labels.get(f"{LABEL}.cell", ""),
        build_key=image.labels[f"{LABEL}.build-key"],
        required=needed(image.labels[f"{LABEL}.channel"]) if same else found,
    )


def _named(repository: str, wanted: str) -> str:
    return f"{repository}{'@' if ':' in wanted else ':'}{wanted}"


def _json(data: object) -> dict[str, object]:
    """A JSON object; empty for anything else."""
    if isinstance(data, bytes):
        try:
            data = json.loads(data)
        except (ValueError, RecursionError):
            return {}
    return data if isinstance(data, dict) else {}
