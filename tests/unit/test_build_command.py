"""Which images `imagefactory build` verifies, and which results are problems."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from support.machine import settings
from support.plans import inputs_with
from support.plans import planned as plan_of
from support.receipts import TOOLS

from imagefactory.errors import CheckFailedError, InputError, Problem
from imagefactory.locking.lock import Lock
from imagefactory.planning.decision import Uncovered
from imagefactory.results import Built, Planned
from imagefactory.system.engine import ImageInfo
from imagefactory.verifying import receipt
from imagefactory.verifying.receipt import CHECKS, CheckResult, Outcome, Receipt
from imagefactory.verifying.receipt_store import ReceiptStore


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


def verified(tag: str, outcome: Outcome, revision: str = TOOLS[CHECKS]) -> Receipt:
    check = CheckResult(name="torch", outcome=outcome, required=True, detail="seen", seconds=0.1)
    return Receipt(
        digest=f"sha256:{tag}",
        tag=tag,
        cell=tag,
        build_key="k",
        verified_at="2026-11-20T00:00:00+00:00",
        checks=(check,),
        tools={CHECKS: revision},
    )


def built(stopped: Mapping[str, tuple[Problem, ...]], *uncovered: Uncovered) -> Built:
    inputs = inputs_with(Lock(created="", tools=(), resolutions=()), settings(Path()))
    planned = Planned(
        inputs=inputs, bases={}, decisions=(), images=None, site=None, uncovered=uncovered
    )
    return Built(planned=planned, stopped=stopped, results={}, receipts=())


def test_a_cell_that_is_not_locked_is_an_input_error_beside_cells_that_were_built() -> None:
    problem = Problem(code="lock-uncovered", what="no resolution")
    failed = Problem(code="patch-broken", what="a proof fails")
    left_out = Uncovered(cell=plan_of().cell, problems=(problem,))
    assert built({}).error is None
    only_lock = built({}, left_out).error
    assert isinstance(only_lock, InputError)
    both = built({"other": (failed,)}, left_out).error
    assert isinstance(both, CheckFailedError)
    assert both.problems == (failed, problem)
    assert [row.as_dict()["action"] for row in built({}, left_out).planned.rows] == ["blocked"]


def test_only_images_whose_digest_has_not_passed_are_verified(tmp_path: Path) -> None:
    store = ReceiptStore(folder=tmp_path)
    for one in (
        verified("good", Outcome.PASS),
        verified("bad", Outcome.FAIL),
        verified("skipped", Outcome.SKIP),
        verified("before", Outcome.PASS, revision="of old"),
    ):
        store.save(one)
    existing = ["good", "bad", "skipped", "before", "new"]
    images = {tag: image(tag) for tag in existing}
    left = store.not_passed([*existing, "missing"], images)
    assert left == [
        "bad",
        "skipped",
        "before",
        "new",
        "missing",
    ]  # verifying reports the missing one


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
