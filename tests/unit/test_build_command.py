"""What `imagefactory build` does with images that are there already."""

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


def judged(tag: str, outcome: Outcome) -> Receipt:
    check = CheckResult(name="torch", outcome=outcome, required=True, detail="seen", seconds=0.1)
    return Receipt(
        digest=f"sha256:{tag}",
        tag=tag,
        cell=tag,
        build_key="k",
        verified_at="2026-11-20T00:00:00+00:00",
        checks=(check,),
    )


def test_only_what_has_not_passed_as_it_is_is_verified_again(tmp_path: Path) -> None:
    for one in (
        judged("good", Outcome.PASS),
        judged("bad", Outcome.FAIL),
        judged("unjudged", Outcome.SKIP),
    ):
        receipt.save(tmp_path, one)
    there = ["good", "bad", "unjudged", "new"]
    images = {tag: image(tag) for tag in there}
    left = receipt.not_passed(tmp_path, [*there, "gone"], images)
    assert left == ["bad", "unjudged", "new", "gone"]  # the verification reports what is gone


def test_a_required_check_that_did_not_pass_is_a_problem_be_it_failed_or_left_out() -> None:
    found = receipt.problems(
        [judged("good", Outcome.PASS), judged("bad", Outcome.FAIL), judged("left", Outcome.SKIP)]
    )
    assert [(problem.code, problem.where) for problem in found] == [
        ("check-failed", "bad"),
        ("check-failed", "left"),
    ]
