"""Receipts: which checks count, and for which image."""

from __future__ import annotations

import itertools
import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.receipts import TOOLS

from imagefactory import __version__
from imagefactory.system import signing
from imagefactory.verifying import receipt
from imagefactory.verifying.receipt import CheckResult, Level, Outcome, Receipt, Requirement
from imagefactory.verifying.receipt_store import ReceiptStore

GOOD = CheckResult(name="good", outcome=Outcome.PASS, required=True, detail="seen", seconds=1)
ONE = Receipt(
    digest="sha256:1", tag="t", cell="c", build_key="k", verified_at="now", checks=(GOOD,)
)


@pytest.mark.parametrize(("outcome", "required"), [*itertools.product(Outcome, [True, False])])
def test_only_a_required_check_that_did_not_pass_is_a_problem(
    outcome: Outcome, required: bool
) -> None:
    other = replace(GOOD, name="other", outcome=outcome, required=required, detail="why")
    made = replace(ONE, checks=(GOOD, other))
    bad = required and outcome is not Outcome.PASS
    assert made.passed is not bad
    found = receipt.problems([ONE, made])
    assert [(one.where, one.what) for one in found] == ([("t", "other: why")] if bad else [])


def test_the_unproven_patches_of_an_image_are_in_its_receipt(tmp_path: Path) -> None:
    made = replace(ONE, unproven=("vllm/x",))
    file = ReceiptStore(folder=tmp_path).save(made)
    assert ReceiptStore(folder=tmp_path).load("sha256:1") == made
    rest = {k: v for k, v in made.as_dict().items() if k != "unproven"}
    for value, found in (({}, replace(ONE)), ({"unproven": "vllm/x"}, None)):
        file.write_text(json.dumps({**rest, **value}))
        assert ReceiptStore(folder=tmp_path).load("sha256:1") == found


def test_a_receipt_is_read_as_it_was_written(tmp_path: Path) -> None:
    check = CheckResult(name="n", outcome=Outcome.SKIP, required=False, detail="é", seconds=0.5)
    made = replace(ONE, checks=(GOOD, check), version="1", unproven=("a/b", "c/d"))
    assert ReceiptStore(folder=tmp_path).load(made.digest) is None
    assert ReceiptStore(folder=tmp_path / "new").save(made).name == "sha256-1.json"
    assert ReceiptStore(folder=tmp_path / "new").load(made.digest) == made


def test_without_a_required_check_nothing_has_passed() -> None:
    assert not replace(ONE, checks=()).passed
    assert not replace(ONE, checks=(replace(GOOD, required=False),)).passed


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"passed": true', '"passed": false'),
        ('"passed": true', '"passed": 1'),
        ('"seconds": 1', '"seconds": NaN'),
        ('"seconds": 1', '"seconds": true'),
        ('"seconds": 1', '"seconds": -1'),
        ('"seconds": 1', f'"seconds": 1{"0" * 400}'),
        ('"required": true', '"required": 1'),
        ('"detail": "seen"', '"detail": null'),
        ('"tag": "t"', '"tag": 1'),
        ('"tag": "t"', '"tag": "\\ud800"'),
        ('"outcome": "pass"', '"outcome": "passed"'),
        ('"level": "import"', '"level": "everything"'),
        ('"name": "good"', '"name": "good", "more": 1'),
    ],
)
def test_a_receipt_that_imagefactory_does_not_write_counts_as_none(
    tmp_path: Path, old: str, new: str
) -> None:
    path = ReceiptStore(folder=tmp_path).save(ONE)
    assert ReceiptStore(folder=tmp_path).load(ONE.digest) == ONE
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))
    assert ReceiptStore(folder=tmp_path).load(ONE.digest) is None


def test_a_receipt_is_read_from_a_small_file_only(tmp_path: Path) -> None:
    path = ReceiptStore(folder=tmp_path).save(ONE)
    path.write_text(path.read_text() + " " * signing.LARGEST)
    assert ReceiptStore(folder=tmp_path).load(ONE.digest) is None
    path.unlink()
    os.mkfifo(path)
    assert ReceiptStore(folder=tmp_path).load(ONE.digest) is None
    path.unlink()
    path.symlink_to("/dev/zero")
    assert ReceiptStore(folder=tmp_path).load(ONE.digest) is None


def test_a_level_includes_those_before_it() -> None:
    reached = [[one.includes(other) for other in Level] for one in Level]
    assert [row.count(True) for row in reached] == [1, 2, 3, 4]
    assert all(row == sorted(row, reverse=True) for row in reached)


REQUIRED = (
    Requirement(name="good", required=True, excusable=False),
    Requirement(name="maybe", required=True, excusable=True),
    Requirement(name="extra", required=False, excusable=False),
)
MAYBE, EXTRA = replace(GOOD, name="maybe"), replace(GOOD, name="extra", required=False)
WHOLE = replace(ONE, checks=(GOOD, MAYBE, EXTRA))
IMAGE = {"digest": "sha256:1", "cell": "c", "build_key": "k"}


def differences(*checks: CheckResult) -> list[str]:
    return receipt.differences(replace(WHOLE, checks=checks), required=REQUIRED, **IMAGE)


def test_a_receipt_is_of_exactly_one_image() -> None:
    assert receipt.differences(WHOLE, required=REQUIRED, **IMAGE) == []
    for field, own in IMAGE.items():
        other: dict[str, Any] = {field: "x" * 50}
        (said,) = receipt.differences(replace(WHOLE, **other), required=REQUIRED, **IMAGE)
        assert said == f"its {field.replace('_', ' ')} is {'x' * 40!r}, expected {own!r}"


@pytest.mark.parametrize(
    ("checks", "said"),
    [
        ((GOOD, MAYBE, EXTRA), []),
        # what failed is no difference, and what may be skipped counts as optional then
        ((replace(GOOD, outcome=Outcome.FAIL), MAYBE, EXTRA), []),
        ((GOOD, replace(MAYBE, outcome=Outcome.SKIP, required=False), EXTRA), []),
        ((GOOD, MAYBE, replace(EXTRA, required=True)), []),
        ((GOOD, EXTRA), ["it lacks: maybe"]),
        ((), ["it lacks: good, maybe, extra"]),
        ((GOOD, MAYBE, EXTRA, replace(GOOD, name="x")), ["it has unknown checks: x"]),
        ((GOOD, GOOD, MAYBE, EXTRA), ["it has twice: good"]),
        ((replace(GOOD, required=False), MAYBE, EXTRA), ["it has as optional: good"]),
        ((GOOD, replace(MAYBE, required=False), EXTRA), ["it has as optional: maybe"]),
        (
            (replace(GOOD, required=False, outcome=Outcome.SKIP), MAYBE, EXTRA),
            ["it has as optional: good"],
        ),
    ],
)
def test_a_receipt_has_every_check_of_this_version_once(
    checks: tuple[CheckResult, ...], said: list[str]
) -> None:
    assert differences(*checks) == said


def test_only_what_this_version_verified_itself_counts_as_passed(tmp_path: Path) -> None:
    passed = replace(ONE, version=__version__, tools=TOOLS)
    records = {
        "passed": passed,
        "failed": replace(passed, checks=(replace(GOOD, outcome=Outcome.FAIL),)),
        "older": replace(passed, tools={}),
    }
    images: dict[str, Any] = {
        tag: SimpleNamespace(digest=f"sha256:{tag}") for tag in (*records, "new")
    }
    for tag, record in records.items():
        ReceiptStore(folder=tmp_path).save(replace(record, digest=f"sha256:{tag}"))
    tags = [*images, "gone"]
    assert ReceiptStore(folder=tmp_path).not_passed(tags, images) == [
        "failed",
        "older",
        "new",
        "gone",
    ]


def test_a_receipt_says_whether_it_passed_and_which_checks_failed() -> None:
    bad = replace(GOOD, name="bad", outcome=Outcome.SKIP)
    made = replace(ONE, checks=(GOOD, bad, replace(bad, name="other", required=False)))
    assert (made.as_dict()["passed"], ONE.as_dict()["passed"]) == (False, True)
    assert made.failed_checks == ("bad",)
