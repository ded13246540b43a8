"""Receipts: which checks count, and for which image."""

from __future__ import annotations

import itertools
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from imagefactory.verifying import receipt
from imagefactory.verifying.receipt import CheckResult, Outcome, Receipt

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
    file = receipt.save(tmp_path, made)
    assert receipt.load(tmp_path, "sha256:1") == made
    rest = {k: v for k, v in made.as_dict().items() if k != "unproven"}
    for value, found in (({}, replace(ONE)), ({"unproven": "vllm/x"}, None)):
        file.write_text(json.dumps({**rest, **value}))
        assert receipt.load(tmp_path, "sha256:1") == found


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
        ('"name": "good"', '"name": "good", "more": 1'),
    ],
)
def test_a_receipt_that_imagefactory_does_not_write_counts_as_none(
    tmp_path: Path, old: str, new: str
) -> None:
    path = receipt.save(tmp_path, ONE)
    assert receipt.load(tmp_path, ONE.digest) == ONE
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))
    assert receipt.load(tmp_path, ONE.digest) is None


def test_a_receipt_is_read_from_a_small_file_only(tmp_path: Path) -> None:
    path = receipt.save(tmp_path, ONE)
    path.write_text(path.read_text() + " " * receipt.LARGEST)
    assert receipt.load(tmp_path, ONE.digest) is None
    path.unlink()
    os.mkfifo(path)
    assert receipt.load(tmp_path, ONE.digest) is None
    path.unlink()
    path.symlink_to("/dev/zero")
    assert receipt.load(tmp_path, ONE.digest) is None
