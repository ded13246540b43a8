"""What an attachment says about itself, by which tools tell one from another."""

from __future__ import annotations

import json

import pytest
from support.keys import trusting
from support.plans import planned
from support.promoting import labels, receipt_of

from imagefactory import __version__
from imagefactory.publishing import attachments, provenance, sbom, tags
from imagefactory.system.signing import NOBODY, Trust
from imagefactory.verifying import receipt_store
from imagefactory.verifying.receipt_store import Found

CI = trusting(b"ci")


@pytest.mark.parametrize(
    ("by", "media_type"), [(None, attachments.JSON), (CI.keys[0], attachments.DSSE)]
)
def test_a_receipt_is_attached_as_it_is_with_its_time_and_level(
    by: object, media_type: str
) -> None:
    record = receipt_of("sha256:1", labels("aaaaaaaa"))
    made = attachments.of_receipt(Found(receipt=record, by=by, content=b"as read"))  # type: ignore[arg-type]
    assert (made.kind, made.media_type) == (attachments.RECEIPTS[0], media_type)
    assert made.content == b"as read"
    assert made.annotations == {
        "org.opencontainers.image.created": record.verified_at,
        "in-toto.io/predicate-type": receipt_store.PREDICATE,
        "io.imagefactory.level": "import",
    }


@pytest.mark.parametrize(
    ("trust", "media_type"), [(NOBODY, receipt_store.IN_TOTO), (CI, attachments.DSSE)]
)
def test_the_sbom_and_the_provenance_of_a_build_have_the_time_of_its_image(
    monkeypatch: pytest.MonkeyPatch, trust: Trust, media_type: str
) -> None:
    monkeypatch.setattr(sbom, "make", lambda *_: b"{}")
    plan = planned()
    listed, origin = attachments.of_build(plan, "sha256:" + "a" * 64, trust)
    created = {"org.opencontainers.image.created": plan.labels[tags.CREATED]}
    assert (listed.kind, listed.media_type) == (attachments.SBOM, attachments.SBOM)
    assert (listed.content, listed.annotations) == (b"{}", created)
    assert (origin.kind, origin.media_type) == (receipt_store.IN_TOTO, media_type)
    assert origin.annotations == {
        **created,
        "in-toto.io/predicate-type": provenance.PREDICATE,
    }
    assert ("payload" in json.loads(origin.content)) == (trust is CI)


def test_receipts_of_both_versions_are_read_and_the_newer_one_is_written() -> None:
    kind = "application/vnd.imagefactory.receipt.v{}+json"
    assert (kind.format(2), kind.format(1)) == attachments.RECEIPTS


def test_the_provenance_has_the_fields_of_slsa() -> None:
    plan = planned()
    made = provenance.make(plan, sbom="sha256:ab", sbom_type="x")
    assert made.keys() == {"buildDefinition", "runDetails"}
    how = made["buildDefinition"]
    parts = how.pop("resolvedDependencies")
    assert {frozenset(part) for part in parts} == {frozenset(("name", "uri", "digest"))}
    assert how == {
        "buildType": provenance.BUILD,
        "externalParameters": {
            "command": ["imagefactory", "build", "--matrix", "--select", plan.cell.name],
            "cell": plan.cell.name,
            "platform": plan.cell.platform,
            "axes": plan.cell.axes,
        },
        "internalParameters": {
            "buildKey": plan.build_key,
            "lockDigest": plan.labels["io.imagefactory.lock-digest"],
            "base": plan.base.digest,
        },
    }
    ran = made["runDetails"]
    assert ran["builder"] == {"id": provenance.BUILDER, "version": {"imagefactory": __version__}}
    assert ran["metadata"] == {"invocationId": plan.build_key}
    assert ran["byproducts"] == [{"name": "sbom", "mediaType": "x", "digest": {"sha256": "ab"}}]


def test_what_others_look_for_in_a_provenance_and_an_sbom_stays_the_same() -> None:
    assert provenance.PREDICATE == "https://slsa.dev/provenance/v1"
    assert provenance.BUILD == "https://imagefactory.io/build/v1"
    assert provenance.BUILDER == "https://imagefactory.io/builder/v1"
    assert attachments.SBOM == "application/vnd.cyclonedx+json"
    assert (attachments.DSSE, attachments.JSON) == (
        "application/vnd.dsse.envelope.v1+json",
        "application/json",
    )
