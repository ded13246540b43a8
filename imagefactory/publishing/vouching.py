"""Whether an image in a registry is one that passed its verification.

A receipt is found on this machine, or attached to the image: ``push`` attaches it, so that another
machine may move tags too. Of several receipts of one image the latest counts, unless an earlier one
shows more. Those that are edited, or signed by somebody who is not trusted, never do.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from imagefactory.errors import CheckFailedError, InputError, fail
from imagefactory.matrix.moving_tags import VERIFIED, MovingTag
from imagefactory.planning.cell_plan import LABEL
from imagefactory.publishing import attachments, tags
from imagefactory.system import reference as references
from imagefactory.system.engine import ImageInfo
from imagefactory.system.manifests import Document
from imagefactory.system.registry import Registries
from imagefactory.verifying import receipt, receipt_store, revision
from imagefactory.verifying.receipt import Level, Receipt, Requirement
from imagefactory.verifying.receipt_store import Found, ReceiptStore, Refused

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


def of_engine(found: ImageInfo, repository: str) -> Image:
    """An image of the engine, which was pulled from a repository or will be pushed to it."""
    document = Document(digest=found.digest, media_type="", content=b"", row={})
    return Image(
        repository=repository,
        document=document,
        config="",
        labels=found.labels,
        platform=str(found.platform),
    )


def require(
    image: Image,
    moving: MovingTag,
    registries: Registries,
    receipts: ReceiptStore,
    needed: Requirements,
) -> Found:
    """The receipt that vouches for ``image``. Raises CheckFailedError if none does."""
    found = judge(image, candidates(image, registries, receipts), needed, "promote")
    if moving.level != VERIFIED and not found.receipt.level.includes(Level(moving.level)):
        what = f"{moving.template} needs a receipt of level {moving.level!r}, and the receipt of "
        what += f"{_where(image)} shows level {str(found.receipt.level)!r}"
        fix = f"give it a tag that needs less, or change `level` at {moving.location}"
        raise fail(CheckFailedError, "promote-level", what, fix=fix)
    return found


def judge(
    image: Image, found: Sequence[Found | Refused], needed: Requirements, action: str
) -> Found:
    """The one of an image's receipts that counts.

    Raises CheckFailedError, whose code begins with ``action``, unless it says that it passed.
    """
    where = f"{_where(image)} ({image.name})"
    if not image.name:
        what = f"{_where(image)} is no image that imagefactory made: its labels are incomplete"
        fix = "push it with imagefactory push"
        raise fail(CheckFailedError, f"{action}-foreign", what, fix=fix)
    best = receipt_store.weightiest(found, lambda one: _differences(one, image, needed))
    fix = f"imagefactory verify {image.repository}@{image.digest}"
    if best is None:
        refused = dict.fromkeys(one.why for one in found if isinstance(one, Refused))
        if refused:
            what, code = f"no receipt of {where} counts: {'; '.join(refused)}", f"{action}-receipt"
        else:
            what, code = f"{where} has no receipt, here or attached to it", f"{action}-unverified"
        raise fail(CheckFailedError, code, what, fix=fix)
    wrong = _differences(best.receipt, image, needed)
    if wrong:
        what = f"the receipt is not one for {where}: {'; '.join(wrong)}"
        raise fail(CheckFailedError, f"{action}-receipt", what, fix=fix)
    if not best.receipt.passed:
        what = f"{where} did not pass its last verification: "
        what += ", ".join(best.receipt.failed_checks)
        raise fail(CheckFailedError, f"{action}-failed-verify", what, fix=f"{fix} shows why")
    return best


def candidates(
    image: Image, registries: Registries, receipts: ReceiptStore
) -> list[Found | Refused]:
    """All receipts of an image, here and attached to it."""
    return [*own(image, receipts), *attached(image, registries, receipts)]


def own(image: Image, receipts: ReceiptStore) -> Iterator[Found | Refused]:
    """The receipts of an image on this machine, whose engine may know it by its configuration."""
    for digest in (image.digest, image.config):
        found = receipts.find(digest) if digest else None
        if found:
            yield found


def attached(
    image: Image, registries: Registries, receipts: ReceiptStore
) -> Iterator[Found | Refused]:
    """The receipts that are attached to an image."""
    kinds = attachments.RECEIPTS
    for content in attachments.contents(registries, image.repository, image.digest, *kinds):
        yield receipt_store.read(content, receipts.trust, image.digest, image.config)


def reference_of(text: str, repository: str, *, only: bool = False) -> tuple[str, str]:
    """Repository and tag or digest of ``text``: a reference, or a tag or digest in ``repository``.

    Raises InputError ``reference-wrong`` if it is none, ``reference-elsewhere`` if it names another
    repository and ``only`` this one may be named.
    """
    if references.is_digest(text) or references.is_tag(text):
        return repository, text
    if references.is_cut_digest(text):
        fix = "write sha256: and 64 hex digits"
        raise fail(InputError, "reference-wrong", f"{text!r} is a malformed digest", fix=fix)
    found = references.parse(text)
    if not (found.tag or found.digest):
        fix = f"write {text}:TAG or {text}@sha256:..."
        raise fail(InputError, "reference-wrong", f"{text!r} has no tag and no digest", fix=fix)
    name = text.partition("@")[0].removesuffix(f":{found.tag}" if found.tag else "")
    if only and references.parse(name) != references.parse(repository):
        what = f"{text} is not in {repository}, which --repository names"
        fix = "a tag moves within one repository: leave out --repository, or name an image of it"
        raise fail(InputError, "reference-elsewhere", what, fix=fix)
    return name, found.digest or found.tag


def _where(image: Image) -> str:
    return f"{image.repository}@{image.digest[:19]}"


def _differences(record: Receipt, image: Image, needed: Requirements) -> list[str]:
    """How ``record`` differs from a receipt of this image.

    Another version of imagefactory may have had other checks, and it counts what it found: an
    image of last month is one to go back to.
    """
    same = record.revision == revision.of_checks()
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
