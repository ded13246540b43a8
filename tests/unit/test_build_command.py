"""What `imagefactory build` does with images that are there already."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from imagefactory.commands import build, verify
from imagefactory.settings import from_environment
from imagefactory.system.engine import Engine, ImageInfo
from imagefactory.verifying import receipt
from imagefactory.verifying.receipt import CheckResult, Outcome, Receipt
from imagefactory.workspace import Workspace


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


def test_only_what_has_not_passed_as_it_is_is_verified_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def verify_all(
        workspace: Workspace, engine: Engine, tags: list[str], **_: Any
    ) -> list[Receipt]:
        asked.extend(tags)
        return []

    monkeypatch.setattr(verify, "verify_all", verify_all)
    workspace = Workspace(
        tmp_path / "matrix.yaml", from_environment({"XDG_STATE_HOME": str(tmp_path)}, tmp_path)
    )
    engine = Engine(binary="docker", host=None, config=None)
    for one in (
        judged("good", Outcome.PASS),
        judged("bad", Outcome.FAIL),
        judged("unjudged", Outcome.SKIP),
    ):
        receipt.save(workspace.settings.receipts, one)
    there = ["good", "bad", "unjudged", "new"]
    images = {tag: image(tag) for tag in there}
    build._verify_unless_passed(workspace, engine, [*there, "gone"], images, show=False)
    assert asked == ["bad", "unjudged", "new", "gone"]  # what is gone is told by the verification


def test_a_required_check_that_did_not_pass_is_a_problem_be_it_failed_or_left_out() -> None:
    found = receipt.problems(
        [judged("good", Outcome.PASS), judged("bad", Outcome.FAIL), judged("left", Outcome.SKIP)]
    )
    assert [(problem.code, problem.where) for problem in found] == [
        ("check-failed", "bad"),
        ("check-failed", "left"),
    ]
