"""Which images may be pushed."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.images import DIGEST, Images, image
from support.plans import planned

from imagefactory.errors import CheckFailedError
from imagefactory.publishing import publishing
from imagefactory.system.engine import ImageInfo
from imagefactory.verifying import receipt
from imagefactory.verifying.receipt import CheckResult, Outcome, Receipt


def saved(folder: Path, *outcomes: Outcome, digest: str = DIGEST) -> None:
    checks = tuple(
        CheckResult(name=f"c{n}", outcome=o, required=True, detail="", seconds=0)
        for n, o in enumerate(outcomes)
    )
    made = Receipt(
        digest=digest, tag="t", cell="c", build_key="k", verified_at="now", checks=checks
    )
    receipt.save(folder, made)


def refused(folder: Path, *images: ImageInfo) -> str:
    with pytest.raises(CheckFailedError) as caught:
        publishing.allowed([planned()], Images(*images), folder)
    (problem,) = caught.value.problems
    assert problem.fix.startswith("imagefactory ")
    return problem.code


def test_an_image_may_move_only_with_a_passed_receipt_of_exactly_its_digest(tmp_path: Path) -> None:
    made = planned()
    assert refused(tmp_path) == "push-no-image"
    assert refused(tmp_path, image(made, **{"io.imagefactory.build-key": "old"})) == "push-stale"
    assert refused(tmp_path, image(made)) == "push-unverified"
    saved(tmp_path, Outcome.PASS, digest="sha256:" + "b" * 64)
    assert refused(tmp_path, image(made)) == "push-unverified"
    saved(tmp_path, Outcome.PASS, Outcome.FAIL)
    assert refused(tmp_path, image(made)) == "push-failed-verify"
    saved(tmp_path, Outcome.PASS, Outcome.SKIP)
    assert refused(tmp_path, image(made)) == "push-failed-verify"
    saved(tmp_path)
    assert refused(tmp_path, image(made)) == "push-failed-verify"
    saved(tmp_path, Outcome.PASS)
    assert len(publishing.allowed([made], Images(image(made)), tmp_path)) == 1


def test_a_receipt_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    saved(tmp_path, Outcome.PASS)
    next(tmp_path.glob("*.json")).write_text("{}")
    assert receipt.load(tmp_path, DIGEST) is None
