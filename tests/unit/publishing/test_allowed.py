"""Which images may be pushed: those with a receipt of exactly the checks of this version."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.images import DIGEST, Images, image
from support.plans import planned
from support.receipts import GOOD, saved

from imagefactory.errors import CheckFailedError
from imagefactory.publishing import publishing, vouching
from imagefactory.system.engine import ImageInfo
from imagefactory.verifying import check_registry, receipt
from imagefactory.verifying.receipt import CheckResult, Level, Outcome, Receipt, Requirement
from imagefactory.verifying.receipt_store import ReceiptStore

#: What a receipt needs here: ``on-gpu`` may be skipped, ``advice`` may end in any way.
NEEDED = (
    Requirement(name="files", required=True, excusable=False),
    Requirement(name="torch", required=True, excusable=False),
    Requirement(name="on-gpu", required=True, excusable=True),
    Requirement(name="advice", required=False, excusable=False),
)


def check(name: str, outcome: Outcome, *, required: bool = True) -> CheckResult:
    return CheckResult(name=name, outcome=outcome, required=required, detail="", seconds=0)


@pytest.fixture(autouse=True)
def nothing_is_pushed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vouching, "read_image", lambda *_: None)


def allowed(folder: Path, *images: ImageInfo) -> int:
    store = ReceiptStore(folder=folder)
    return len(
        publishing.allowed([planned()], Images(*images), store, lambda _: NEEDED, "x.test/vllm")
    )


def refused(folder: Path, *images: ImageInfo) -> tuple[str, str]:
    """Code and text of the refusal to push."""
    with pytest.raises(CheckFailedError) as caught:
        allowed(folder, *images)
    (problem,) = caught.value.problems
    assert problem.fix.startswith("imagefactory ")
    return problem.code, problem.what


def test_an_image_may_move_only_with_a_passed_receipt_of_exactly_its_digest(tmp_path: Path) -> None:
    made = planned()
    assert refused(tmp_path)[0] == "push-no-image"
    assert refused(tmp_path, image(made, **{"io.imagefactory.build-key": "old"}))[0] == "push-stale"
    assert refused(tmp_path, image(made))[0] == "push-unverified"
    saved(tmp_path, digest="sha256:" + "b" * 64)
    assert refused(tmp_path, image(made))[0] == "push-unverified"
    for bad in (Outcome.FAIL, Outcome.SKIP):
        saved(tmp_path, GOOD[0], check("torch", bad), *GOOD[2:])
        code, what = refused(tmp_path, image(made))
        assert (code, what.endswith("last verification: torch")) == ("push-failed-verify", True)
    saved(tmp_path)
    assert allowed(tmp_path, image(made)) == 1


def test_what_may_move_is_each_plan_with_its_own_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "_refusal", lambda *_: None)
    one, store = planned(), ReceiptStore(folder=tmp_path)
    two = replace(one, cell=replace(one.cell, name="two", tags=("imagefactory/vllm:two",)))
    images = image(one), replace(image(one), ref=two.cell.tag, digest="sha256:2")
    assert publishing.allowed(
        [two, one], Images(*images), store, lambda _: NEEDED, "x.test/vllm"
    ) == [(two, images[1]), (one, images[0])]


def without(name: str) -> tuple[CheckResult, ...]:
    return tuple(one for one in GOOD if one.name != name)


@pytest.mark.parametrize(
    ("checks", "difference"),
    [
        ((check("invented", Outcome.PASS),), "it has unknown checks: invented"),
        ((check("invented", Outcome.PASS),), "it lacks: files, torch, on-gpu, advice"),
        (without("torch"), "it lacks: torch"),
        (without("advice"), "it lacks: advice"),
        ((*GOOD, check("more", Outcome.PASS)), "it has unknown checks: more"),
        ((*GOOD, GOOD[0]), "it has twice: files"),
        (
            (*without("torch"), check("torch", Outcome.SKIP, required=False)),
            "it has as optional: torch",
        ),
        (
            (*without("torch"), check("torch", Outcome.FAIL, required=False)),
            "it has as optional: torch",
        ),
        (
            (*without("on-gpu"), check("on-gpu", Outcome.FAIL, required=False)),
            "it has as optional: on-gpu",
        ),
    ],
)
def test_a_receipt_with_other_checks_than_this_version_makes_is_refused(
    tmp_path: Path, checks: tuple[CheckResult, ...], difference: str
) -> None:
    saved(tmp_path, *checks, version="0.0.1")
    code, what = refused(tmp_path, image(planned()))
    assert code == "push-receipt"
    assert difference in what.partition("version: ")[2].split("; ")
    assert "the receipt of imagefactory 0.0.1" in what


@pytest.mark.parametrize("tools", [{}, {"checks": "0123456789abcdef"}])
def test_a_receipt_of_checks_that_changed_since_is_refused(
    tmp_path: Path, tools: dict[str, str]
) -> None:
    saved(tmp_path, tools=tools, version="0.1.0")
    code, what = refused(tmp_path, image(planned()))
    assert code == "push-receipt"
    assert "the receipt of imagefactory 0.1.0 is not one for" in what
    assert what.endswith("by this version: its checks are of another revision")


def test_what_a_gpu_verified_is_to_be_verified_again_on_a_gpu(tmp_path: Path) -> None:
    made = planned()
    for level, option in ((Level.SERVE, ""), (Level.GPU, "--gpu ")):
        saved(tmp_path, tools={}, level=level)
        with pytest.raises(CheckFailedError) as caught:
            allowed(tmp_path, image(made))
        fix = f"imagefactory verify --rerun {option}{made.cell.tag}"
        assert caught.value.problems[0].fix == fix


@pytest.mark.parametrize("field", ["digest", "cell", "build_key"])
def test_a_receipt_of_another_image_is_refused(tmp_path: Path, field: str) -> None:
    path = saved(tmp_path)
    rows = json.loads(path.read_text())
    right = rows[field]
    path.write_text(json.dumps({**rows, field: "other"}))
    code, what = refused(tmp_path, image(planned()))
    assert code == "push-receipt"
    said = f"its {field.replace('_', ' ')} is 'other', expected {right[:40]!r}"
    assert (said if field != "digest" else "counts: it is one for 'other'") in what


def test_what_the_real_checks_require_depends_on_the_channel() -> None:
    cuda, cpu = (
        {one.name: one for one in check_registry.requirements(channel)}
        for channel in ("cu130", "cpu")
    )
    assert {*cuda} == {*cpu} == {one.name for one in check_registry.all_checks()}
    server = {name for name in cuda if name.startswith("server-")}
    assert server
    assert all(cuda[name].excusable and not cpu[name].excusable for name in server)
    excusable = {name for name in cpu if cpu[name].excusable}
    gpu = {name for name in excusable if name.startswith(("gpu-", "model-"))}
    assert excusable - gpu == {"cluster-ray", "image-origin", "patches-effective"}


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: rows.clear(),
        lambda rows: rows["checks"][0].update(required="yes"),
        lambda rows: rows["checks"][0].update(outcome="fine"),
        lambda rows: rows["checks"][0].update(seconds="x"),
        lambda rows: rows["checks"][0].update(name=1),
        lambda rows: rows["checks"][0].update(more=1),
        lambda rows: rows.update(cell=None),
        lambda rows: rows.update(checks=5),
        lambda rows: rows.update(unproven=[1]),
        lambda rows: rows.update(unproven="x"),
    ],
)
def test_a_receipt_that_cannot_be_read_is_none(
    tmp_path: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    path = saved(tmp_path)
    assert ReceiptStore(folder=tmp_path).load(DIGEST) is not None
    rows = json.loads(path.read_text())
    change(rows)
    path.write_text(json.dumps(rows))
    assert ReceiptStore(folder=tmp_path).load(DIGEST) is None


@pytest.mark.parametrize("channel", ["cpu", "cu130"])
def test_checks_of_a_gpu_are_missed_only_in_a_receipt_that_claims_them(channel: str) -> None:
    """With the real checks: they are made only by ``verify --gpu``."""
    needed = check_registry.requirements(channel)
    usual = [one for one in needed if one.level is not Level.GPU]
    rows = tuple(check(one.name, Outcome.PASS, required=one.required) for one in usual)

    def lacks(level: Level, checks: tuple[CheckResult, ...]) -> list[str]:
        record = Receipt(
            digest="sha256:d",
            tag="t",
            cell="c",
            build_key="k",
            verified_at="",
            checks=checks,
            level=level,
        )
        return receipt.differences(
            record, digest="sha256:d", cell="c", build_key="k", required=needed
        )

    assert lacks(Level.SERVE, rows) == []
    assert lacks(Level.IMPORT, rows) == []
    (claimed,) = lacks(Level.GPU, rows)
    assert claimed.startswith("it lacks: gpu-")
    server = tuple(row for row in rows if not row.name.startswith("server-"))
    assert all("server-starts" in one for one in lacks(Level.IMPORT, server))
    assert lacks(Level.IMPORT, server)
