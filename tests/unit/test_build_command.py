"""Which images `imagefactory build` verifies, and which results are problems."""

from __future__ import annotations

from pathlib import Path

from imagefactory.system.engine import ImageInfo
from imagefactory.verifying import receipt
from imagefactory.verifying.receipt import CheckResult, Outcome, Receipt


def image(tag: str) -> ImageInfo:
    return ImageInfo(
        ref=tag,
        digest=f"sha256:{tag}",
        layers=(),
        platform="linux/arm64",
        labels={},
        env={},
        size=1,
    )


def verified(tag: str, outcome: Outcome) -> Receipt:
    check = CheckResult(name="torch", outcome=outcome, required=True, detail="seen", seconds=0.1)
    return Receipt(
        digest=f"sha256:{tag}",
        tag=tag,
        cell=tag,
        build_key="k",
        verified_at="2026-11-20T00:00:00+00:00",
        checks=(check,),
    )


def test_only_images_whose_digest_has_not_passed_are_verified(tmp_path: Path) -> None:
    for one in (
        verified("good", Outcome.PASS),
        verified("bad", Outcome.FAIL),
        verified("skipped", Outcome.SKIP),
    ):
        receipt.save(tmp_path, one)
    existing = ["good", "bad", "skipped", "new"]
    images = {tag: image(tag) for tag in existing}
    left = receipt.not_passed(tmp_path, [*existing, "missing"], images)
    assert left == ["bad", "skipped", "new", "missing"]  # verifying reports the missing one


def test_a_required_check_that_failed_or_was_skipped_is_a_problem() -> None:
    found = receipt.problems(
        [
            verified("good", Outcome.PASS),
            verified("bad", Outcome.FAIL),
            verified("left", Outcome.SKIP),
        ]
    )
    assert [(problem.code, problem.where) for problem in found] == [
        ("check-failed", "bad"),
        ("check-failed", "left"),
    ]
