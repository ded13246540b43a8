"""The page of an image, read by a parser as a browser reads it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import reported
from support.keys import signer
from support.pages import Page
from support.recorded import HOSTILE
from support.reported import check, facts, image, receipt

from imagefactory.auditing.auditing import Audit
from imagefactory.auditing.gpu_code import GpuCode
from imagefactory.auditing.judging import Extension
from imagefactory.errors import Problem
from imagefactory.inspecting.anatomy import Change, Difference, Dropped, Layer
from imagefactory.reporting import reporting
from imagefactory.reporting.facts import Before, Facts
from imagefactory.verifying.receipt import Level, Outcome, PatchResult
from imagefactory.verifying.receipt_store import Found, Refused

OLD = receipt(digest=f"sha256:{'77' * 32}", verified_at="2026-11-20T18:00:00+00:00")
FAILED = check(outcome=Outcome.FAIL, detail="expected CUDA 13.0, found none\nTraceback:\n  line 7")
SAME = Difference(changes=(), shared=image().layers, moved=())


def shown(found: Facts, cache: Path) -> Page:
    return Page(reporting.page(found, cache))


def classes(page: Page) -> set[str]:
    return {name for _, one in page.tags for name in one.get("class", "").split()}


def hostile() -> Facts:
    """Facts in which every text is hostile."""
    text = f"{HOSTILE}\x1b[31m"
    checks = check(text, outcome=Outcome.FAIL, detail=f"{text}\n{text}"), check(detail=f"a\n{text}")
    patch = PatchResult(name=text, variant=text, proof=text, detail=text)
    record = receipt(
        *checks, tag=text, patches=(patch,), tools={text: text}, version=text, verified_at=text
    )
    labels = dict.fromkeys([*reported.LABELS, f"io.imagefactory.pin.{text}"], text)
    problem = Problem(code=text, what=text, fix=text, detail=text)
    extension = Extension(
        wheel=text, path=text, gpu=GpuCode(targets={"sm_120f": 1}, damaged=1), way=None
    )
    change = Change(kind=text, name=text, old=text, new=text)
    return facts(
        found=Found(receipt=record, by=signer(text.encode()).key, content=b""),
        image=image(
            ref=text,
            platform=text,
            labels=labels,
            unknown=text,
            layers=(Layer(digest=text, purpose=text, size=1),),
            packages={text: text},
            patches={text: text},
            dropped=(Dropped(layer=text, rule=text, files=1, size=1),),
        ),
        audit=Audit(
            cell=text, problems=(problem,), notes=(text,), extensions=(extension,), capability=121
        ),
        before=Before(receipt=record, difference=replace(SAME, changes=(change,))),
        biggest=((text, text, 1),),
    )


@pytest.mark.parametrize(
    "found",
    [
        facts(check(), FAILED, before=Before(receipt=OLD, difference=SAME)),
        facts(found=None, audit="nobody did it"),
        hostile(),
    ],
    ids=["failed", "unknown", "hostile"],
)
def test_the_page_is_well_formed_loads_nothing_and_has_no_barriers(
    found: Facts, cache: Path
) -> None:
    page = shown(found, cache)
    assert (page.wrong, page.open, page.barriers()) == ([], [], [])
    ids = Counter(one["id"] for _, one in page.tags if "id" in one)
    assert max(ids.values()) == 1
    assert {one["href"].removeprefix("#") for one in page.all("a")} <= {*ids}
    assert not {"script", "link", "img", "iframe", "object", "svg"} & {tag for tag, _ in page.tags}
    assert page.all("meta")[-2]["content"].startswith(
        "default-src 'none'; style-src 'unsafe-inline'"
    )
    assert "\x1b" not in page.text


def test_what_an_image_says_is_text(cache: Path) -> None:
    page = shown(hostile(), cache)
    assert page.text.count(HOSTILE) > 50
    assert page.text.count(HOSTILE) == page.text.count(f"{HOSTILE}\\x1b[31m")


def test_the_parser_finds_what_would_run_and_what_would_be_a_barrier() -> None:
    assert {"script", "img"} <= {tag for tag, _ in Page(HOSTILE).tags}
    page = Page("<html><h1></h1><h3></h3><th><i style='x' class='scroll'></th><a></a></html>")
    assert len(page.barriers()) == 7


def test_a_good_image_is_green_with_signer_level_and_proofs(cache: Path) -> None:
    page = shown(facts(before=Before(receipt=OLD, difference=SAME)), cache)
    assert "Verified, level import (1 passed, 0 failed, 0 skipped)." in page.text
    assert "signed by ci@example.org (SHA256:" in page.text
    assert {"o-pass", "good", "w-family"} <= classes(page)
    assert not {"o-fail", "bad", "notice", "failure", "unknown"} & classes(page)
    assert "layer 61 is excluded" in page.text
    assert "sm_120f (41)" in page.text


@pytest.mark.parametrize(
    ("found", "verdict", "more"),
    [
        (facts(check(), FAILED), "Not verified: torch-identity did not pass", "  line 7"),
        (
            facts(check(outcome=Outcome.SKIP)),
            "torch-identity did not pass",
            "skipped, but required",
        ),
        (facts(found=Refused(why="its signature is wrong")), "its signature is wrong", "no"),
        (facts(audit=reported.audit(problems=(Problem(code="a-b", what="x"),))), "", "x [a-b]"),
    ],
    ids=["failed", "skipped", "refused", "audited"],
)
def test_one_fault_is_red_with_its_evidence(
    found: Facts, verdict: str, more: str, cache: Path
) -> None:
    page = shown(found, cache)
    assert verdict in page.text
    assert more in page.text
    assert {"bad", "failure"} & classes(page)
    passed = found.receipt is not None and found.receipt.passed
    assert ("good" in classes(page)) == passed
    assert ("o-fail" in classes(page)) == (found.receipt is not None and not passed)


PROBE = check("probe")


@pytest.mark.parametrize(
    ("found", "states"),
    [
        (facts(PROBE, check()), "passed, passed, not reached, not reached"),
        (facts(PROBE, FAILED), "passed, failed, not reached, not reached"),
        (
            facts(replace(FAILED, name="probe"), check()),
            "failed, passed, not reached, not reached",
        ),
        (facts(FAILED, levels={}), "unknown, unknown, not reached, not reached"),
        (facts(found=None), "unknown, unknown, unknown, unknown"),
    ],
)
def test_a_level_is_passed_failed_or_unknown(found: Facts, states: str) -> None:
    assert ", ".join(map(found.level, Level)) == states


def test_what_is_unknown_is_shown_as_unknown(cache: Path) -> None:
    layers = tuple(replace(one, size=None) for one in image().layers)
    nothing = image(layers=layers, labels={}, packages={}, patches={}, dropped=(), unknown="")
    page = shown(facts(found=None, image=nothing, audit="nobody did it", biggest=()), cache)
    assert "Not verified: it has no receipt on this machine." in page.text
    assert "Not built by imagefactory" in page.text
    assert "Not audited: nobody did it." in page.text
    assert page.text.count("nknown") == 18
    assert "0.0" not in page.text
    assert not {"good", "bad"} & classes(page)


def test_an_unsigned_receipt_and_an_unproven_patch_are_pointed_out(cache: Path) -> None:
    labels = {**reported.LABELS, "io.imagefactory.unproven": "vllm/mtp-exclusion"}
    unsigned = Found(receipt=receipt(), by=None, content=b"")
    page = shown(facts(found=unsigned, image=image(labels=labels)), cache)
    assert "receipt is unsigned" in page.text
    assert "vllm/mtp-exclusion is unproven" in page.text


def rows(found: Facts) -> list[tuple[str, ...]]:
    return [(one.kind, one.name, one.old, one.new) for one in found.changes]


PACKAGE = Change(kind="package", name="torch", old="2.13.0", new="2.14.0")
PIN = replace(PACKAGE, kind="pin")


@pytest.mark.parametrize(
    ("old", "difference", "expected"),
    [
        ({}, SAME, []),
        ({}, replace(SAME, changes=(PACKAGE, PIN)), ["pin torch 2.13.0", "package torch 2.13.0"]),
        (
            {"lock_digest": "b", "level": Level.SERVE},
            None,
            ["lock wheels b", "level reached serve"],
        ),
        (
            {"inputs": {"pin.cuda": "12"}, "patches": ()},
            None,
            ["input pin.cuda 12", "patch", "proof"],
        ),
        ({"checks": (FAILED,)}, SAME, ["check torch-identity fail"]),
        ({"checks": ()}, SAME, []),
        ({"schema": 1, "lock_digest": "", "patches": ()}, None, []),
    ],
)
def test_what_changed_since_the_last_image_of_the_cell(
    old: dict[str, Any], difference: Difference | None, expected: list[str], cache: Path
) -> None:
    found = facts(before=Before(receipt=replace(OLD, **old), difference=difference))
    lines = list(dict.fromkeys(" ".join(row) for row in rows(found)))
    assert len(lines) >= len(expected)
    for text in expected:
        assert any(line.startswith(text) for line in lines)
    page = shown(found, cache)
    assert ("Nothing that is recorded." in page.text) == (not expected)
    assert ("Only receipts" in page.text) == (difference is None)


def test_many_rows_are_behind_a_click(cache: Path) -> None:
    changes = tuple(replace(PACKAGE, name=str(number)) for number in range(reporting.FEW + 3))
    found = facts(before=Before(receipt=OLD, difference=replace(SAME, changes=changes)))
    assert "3 more" in shown(found, cache).text
    (one,) = reported.audit().extensions
    many = reported.audit(extensions=(one,) * (reporting.FEW + 1))
    assert "vllm 0.33.0: 13 extensions" in shown(facts(audit=many), cache).text
