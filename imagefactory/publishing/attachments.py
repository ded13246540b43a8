"""What is attached to an image in a registry: its receipts, its SBOM and its provenance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from imagefactory.errors import CheckFailedError, SetupError, fail
from imagefactory.planning.cell_plan import LABEL, CellPlan
from imagefactory.publishing import provenance, sbom
from imagefactory.system import reference as references
from imagefactory.system import registry_writes, signing, strict_json, ui
from imagefactory.system.manifests import Document, digest_of
from imagefactory.system.registry import MOST_BYTES, Registries
from imagefactory.system.registry_writes import Attachment
from imagefactory.system.signing import Trust
from imagefactory.verifying import receipt_store
from imagefactory.verifying.receipt_store import IN_TOTO, Found, statement

#: Artifact types. Version 1 of a receipt was plain JSON, as an unsigned one of version 2 is.
RECEIPTS = tuple(f"application/vnd.imagefactory.receipt.v{number}+json" for number in (2, 1))
SBOM = "application/vnd.cyclonedx+json"
#: Media types of content.
DSSE, JSON = "application/vnd.dsse.envelope.v1+json", "application/json"
#: The annotation by which tools tell one statement from another, and the usual one of a time.
PREDICATE_TYPE, CREATED = "in-toto.io/predicate-type", "org.opencontainers.image.created"
#: How far an image was verified, for people who list what is attached; the receipt is what counts.
LEVEL = f"{LABEL}.level"
#: Attachments of one kind that are read: the last ones in the registry's list.
MOST_READ = 50


def of_receipt(found: Found) -> Attachment:
    """A receipt, as it is."""
    return Attachment(
        kind=RECEIPTS[0],
        media_type=DSSE if found.by else JSON,
        content=found.content,
        annotations={
            CREATED: found.receipt.verified_at,
            PREDICATE_TYPE: receipt_store.PREDICATE,
            LEVEL: str(found.receipt.level),
        },
    )


def of_build(plan: CellPlan, digest: str, trust: Trust) -> tuple[Attachment, Attachment]:
    """The SBOM of an image, and the provenance of one that this machine has built.

    Equal plans give equal bytes, so that a push that is repeated attaches nothing.
    """
    created = {CREATED: plan.labels[CREATED]}
    listed = sbom.make(plan, digest)
    content = strict_json.dumps(
        statement(
            digest,
            plan.cell.tag,
            provenance.PREDICATE,
            provenance.make(plan, sbom=digest_of(listed), sbom_type=SBOM),
        )
    )
    if trust.signer:
        content = signing.seal(content, IN_TOTO, trust.signer)
    return (
        Attachment(kind=SBOM, media_type=SBOM, content=listed, annotations=created),
        Attachment(
            kind=IN_TOTO,
            media_type=DSSE if trust.signer else IN_TOTO,
            content=content,
            annotations={**created, PREDICATE_TYPE: provenance.PREDICATE},
        ),
    )


def attach(
    registries: Registries, repository: str, subject: Document, wanted: Sequence[Attachment]
) -> bool:
    """Attach to an image; False, with a warning, if the registry does not take it."""
    try:
        registry_writes.attach(registries, repository, subject, wanted)
    except SetupError as error:
        what = f"the receipt is not attached to {repository}@{subject.digest[:19]}"
        ui.warn(f"{what}, so only this machine can promote it: {error.problems[0].what}")
        return False
    return True


def sbom_of(registries: Registries, repository: str, digest: str, trust: Trust) -> bytes | None:
    """The SBOM of an image that its provenance names; None if none is attached.

    Warns if no provenance that counts here names any. Raises CheckFailedError if one does, and it
    is another one: an SBOM is not signed itself.
    """
    there = list(contents(registries, repository, digest, SBOM))
    named = {
        name
        for content in contents(registries, repository, digest, IN_TOTO)
        for name in _named(content, digest, trust)
    }
    right = [one for one in there if digest_of(one) in named]
    if there and named and not right:
        what = f"no SBOM of {repository}@{digest[:19]} is the one that its provenance names"
        fix = "imagefactory push, on the machine that built it, attaches the right one"
        raise fail(CheckFailedError, "sbom-edited", what, fix=fix)
    if there and trust.wants_signatures and not named:
        ui.warn("the SBOM could be anybody's: no signed provenance that counts here names it")
    return next(iter(right or there), None)


def _named(content: bytes, digest: str, trust: Trust) -> Iterator[str]:
    """The digests of the SBOMs that a provenance of an image names, if it counts."""
    with suppress(ValueError, RecursionError, LookupError, TypeError, AttributeError):
        value = strict_json.loads(content, signing.LARGEST)
        if signing.is_envelope(value):
            payload, _ = signing.unseal(value, IN_TOTO, trust.keys)
            value = strict_json.loads(payload, signing.LARGEST)
        elif trust.wants_signatures:
            return
        algorithm, _, wanted = digest.partition(":")
        subjects = [one["digest"][algorithm] for one in value["subject"]]
        if value["predicateType"] == provenance.PREDICATE and subjects == [wanted]:
            rows = value["predicate"]["runDetails"]["byproducts"]
            yield from (f"sha256:{one['digest']['sha256']}" for one in rows)


def contents(registries: Registries, repository: str, digest: str, *kinds: str) -> Iterator[bytes]:
    """What is attached to an image and has one of the artifact types; nobody has checked it.

    What is too large to be any of it is empty: it must not hide what is beside it.
    """
    there = registries.referrers(repository, digest)
    listed = [one for one in there if one.artifact_type in kinds]
    for one in listed[-MOST_READ:]:
        if not references.is_digest(one.digest):
            continue
        manifest = registries.manifest(f"{repository}@{one.digest}")
        for layer in manifest.layers[:1] if manifest else ():
            small = layer.size <= MOST_BYTES
            yield (small and registries.read_blob(repository, layer.digest)) or b""
