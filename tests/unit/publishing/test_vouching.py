"""Which receipts count for an image: of this machine, or attached to it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.images import DIGEST, image
from support.keys import trusting
from support.plans import planned
from support.promoting import labels, receipt_of
from support.receipts import TOOLS

from imagefactory.errors import CheckFailedError
from imagefactory.planning.cell_plan import LABEL
from imagefactory.publishing import attachments, publishing, tags, vouching
from imagefactory.publishing.vouching import Image
from imagefactory.system.engine import ImageInfo
from imagefactory.system.manifests import Document
from imagefactory.verifying.receipt import CheckResult, Outcome, Receipt, Requirement
from imagefactory.verifying.receipt_store import Found, ReceiptStore, Refused

OTHER = "sha256:" + "b" * 64
GONE = "sha256:" + "c" * 64


def found(outcome: Outcome = Outcome.PASS, **fields: object) -> Found:
    made = planned()
    checks = (CheckResult(name="files", outcome=outcome, required=True, detail="", seconds=0),)
    right = {"digest": DIGEST, "cell": made.cell.name, "build_key": made.build_key}
    usual: dict[str, Any] = {"tag": "t", "verified_at": "now", "tools": TOOLS, **right}
    record = Receipt(**{**usual, **fields}, checks=checks)
    return Found(receipt=record, by=None, content=b"")


FAILED, WRONG = found(Outcome.FAIL), found(cell="another")
REFUSED = Refused(why="it is not signed")
NEEDED = (Requirement(name="files", required=True, excusable=False),)


@pytest.mark.parametrize(
    ("own", "elsewhere", "code", "is_asked"),
    [
        ([found()], [], None, False),
        ([], [found()], None, True),
        ([], [], "push-unverified", True),
        ([], [REFUSED], "push-receipt", True),
        ([REFUSED], [found()], None, True),
        ([WRONG], [found()], None, True),
        ([WRONG], [WRONG], "push-receipt", True),
        # what failed here is no better because it passed elsewhere
        ([FAILED], [found()], "push-failed-verify", False),
        ([], [FAILED], "push-failed-verify", True),
    ],
)
def test_another_machines_receipt_counts_unless_the_image_failed_here(
    own: list[Found | Refused], elsewhere: list[Found | Refused], code: str | None, is_asked: bool
) -> None:
    asked: list[bool] = []

    def candidates(image: ImageInfo, *, elsewhere: bool) -> list[Found | Refused]:
        assert image.digest == DIGEST
        asked.append(elsewhere)
        return [*theirs] if elsewhere else [*own]

    theirs, plan = elsewhere, planned()
    problem = publishing._refusal(plan, image(plan), candidates, NEEDED)
    assert (problem.code if problem else None) == code
    assert asked == ([False, True] if is_asked else [False])
    if problem:
        assert problem.where == plan.cell.name
        assert problem.fix.replace("--rerun ", "").startswith(
            f"imagefactory verify {plan.cell.tag}"
        )
        assert problem.fix.endswith("shows why") == (code == "push-failed-verify")


OLDER: dict[str, Any] = {
    "tools": {"checks": "0123456789abcdef"},
    "version": "0.0.9",
    "verified_at": "then",
}


@pytest.mark.parametrize(
    ("own", "elsewhere", "code"),
    [
        # of checks that are not this version's
        ([found(**OLDER)], [found()], None),
        ([], [found(**OLDER), found()], None),
        ([found(cell="another", verified_at="then")], [found()], None),
        ([found(**OLDER)], [found(**OLDER)], "push-receipt"),
        # which found something nevertheless
        ([], [found(Outcome.FAIL, **OLDER), found()], "push-failed-verify"),
        ([], [found(Outcome.FAIL, verified_at="then"), found()], "push-failed-verify"),
    ],
)
def test_a_later_receipt_that_is_not_right_hides_none_that_is(
    own: list[Found],
    elsewhere: list[Found],
    code: str | None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    plan = planned()
    needed = (Requirement(name="files", required=True, excusable=False),)

    def candidates(image: ImageInfo, *, elsewhere: bool) -> list[Found | Refused]:
        return [*own, *theirs] if elsewhere else [*own]

    theirs = elsewhere
    problem = publishing._refusal(plan, image(plan), candidates, needed)
    assert (problem.code if problem else None) == code
    said = " ".join(capsys.readouterr().err.split())
    assert ("a later receipt was left out (then, level import, imagefactory" in said) == (not code)


def test_of_several_receipts_that_are_not_right_each_is_said_to_be_wrong() -> None:
    plan = planned()
    both = [found(**OLDER), found(cell="another")]
    problem = publishing._refusal(plan, image(plan), lambda *_, **__: both, NEEDED)
    assert problem
    assert "its checks are of another revision" in problem.what
    assert "its cell is 'another'" in problem.what


@pytest.mark.parametrize(
    ("labels", "code"), [({f"{LABEL}.build-key": "old"}, "push-stale"), (None, "push-no-image")]
)
def test_what_is_not_there_or_stale_is_to_be_built_again(
    labels: Mapping[str, str] | None, code: str
) -> None:
    plan = planned()
    made = None if labels is None else image(plan, **labels)
    problem = publishing._refusal(plan, made, lambda *_, **__: [found()], NEEDED)
    assert problem
    assert (problem.code, problem.where) == (code, plan.cell.name)
    assert problem.fix == f"imagefactory build --matrix --select {plan.cell.name}"
    assert plan.cell.tag in problem.what


@pytest.mark.parametrize(
    ("digest", "config", "counts"),
    [(DIGEST, "", True), (OTHER, DIGEST, True), (OTHER, OTHER, False), (None, "", False)],
)
def test_what_is_attached_counts_for_the_same_image_only(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    digest: str | None,
    config: str,
    counts: bool,
) -> None:
    plan, store = planned(), ReceiptStore(folder=tmp_path)
    asked: list[tuple[str, str]] = []

    def read_image(_: object, name: str, wanted: str) -> object:
        asked.append((name, wanted))
        return SimpleNamespace(digest=digest, config=config) if digest else None

    monkeypatch.setattr(vouching, "read_image", read_image)
    monkeypatch.setattr(vouching, "attached", lambda *_: iter([REFUSED]))
    engine: Any = SimpleNamespace(registries=None)
    given = plan, engine, store, "h/me/vllm", image(plan)
    assert publishing._candidates(*given, elsewhere=False) == []
    assert asked == []
    assert publishing._candidates(*given, elsewhere=True) == ([REFUSED] if counts else [])
    assert asked == [("h/me/vllm", tags.of_plan(plan))]
    store.save(found().receipt)
    (mine, *_) = publishing._candidates(*given, elsewhere=False)
    assert isinstance(mine, Found)
    assert publishing._candidates(*given, elsewhere=True) == [mine, *([REFUSED] * counts)]


def document(digest: str) -> Document:
    return Document(digest=digest, media_type="", content=b"", row={})


def registered(**changed: Any) -> Image:
    own = labels("aaaaaaaa")
    fields: dict[str, Any] = {
        "repository": "h/x",
        "document": document(DIGEST),
        "config": OTHER,
        "labels": own,
        "platform": "linux/arm64",
    }
    return Image(**{**fields, **changed})


def judged(image: Image, *receipts: Found | Refused, needed: Any = NEEDED) -> str:
    """The code with which an image is refused; empty if one of the receipts counts."""
    try:
        vouching.judge(image, receipts, lambda _: needed, "verify")
    except CheckFailedError as error:
        (problem,) = error.problems
        assert "imagefactory " in problem.fix
        return problem.code
    return ""


def of(
    own: Image, digest: str = DIGEST, outcome: Outcome = Outcome.PASS, **fields: object
) -> Found:
    return Found(receipt=receipt_of(digest, own.labels, outcome, **fields), by=None, content=b"")


def test_a_receipt_counts_for_the_image_that_it_is_about_only() -> None:
    own = registered()
    without = {k: v for k, v in own.labels.items() if k != f"{LABEL}.build-key"}
    assert judged(own, of(own)) == ""
    assert judged(own, of(own, OTHER)) == "", "the digest of its configuration"
    assert judged(own, of(own, GONE)) == "verify-receipt"
    assert judged(own, of(own, cell="other")) == "verify-receipt"
    assert judged(own, of(own, build_key="other")) == "verify-receipt"
    assert judged(own, of(own), needed=()) == "verify-receipt"
    assert judged(own, of(own, version="0.0.1", tools={}), needed=()) == "", (
        "its checks were others"
    )
    assert judged(own, of(own, outcome=Outcome.FAIL)) == "verify-failed-verify"
    assert judged(own, REFUSED) == "verify-receipt"
    assert judged(own, REFUSED, of(own)) == ""
    assert judged(own, of(own), of(own, build_key="other", verified_at="2027")) == ""
    assert judged(own) == "verify-unverified"
    assert judged(registered(labels=without), of(own)) == "verify-foreign"


def test_a_receipt_of_this_machine_is_found_by_digest_and_by_configuration(tmp_path: Path) -> None:
    own, store = registered(), ReceiptStore(folder=tmp_path)
    assert list(vouching.own(own, store)) == []
    for digest in (OTHER, DIGEST, GONE):
        store.save(receipt_of(digest, own.labels))
    kept = [one.receipt.digest for one in vouching.own(own, store) if isinstance(one, Found)]
    assert kept == [DIGEST, OTHER]
    kept = [
        one.receipt.digest
        for one in vouching.own(registered(config=""), store)
        if isinstance(one, Found)
    ]
    assert kept == [DIGEST]


def test_both_kinds_of_receipts_are_read_from_a_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    own, trust = registered(), trusting(b"ci")
    seen: list[tuple[object, ...]] = []

    def contents(*given: object) -> list[bytes]:
        seen.append(given)
        return [b"{}"]

    monkeypatch.setattr(attachments, "contents", contents)
    nothing: Any = None
    store = ReceiptStore(folder=Path("none"), trust=trust)
    (one,) = vouching.attached(own, nothing, store)
    assert isinstance(one, Refused)
    assert seen == [(None, "h/x", DIGEST, *attachments.RECEIPTS)]


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b'{"a": 1}', {"a": 1}),
        ({"a": 1}, {"a": 1}),
        (b"[1]", {}),
        (b"{", {}),
        (b"[" * 100_000, {}),
        (None, {}),
        ("text", {}),
        ([1], {}),
    ],
)
def test_what_is_no_json_object_is_an_empty_one(data: object, value: object) -> None:
    assert vouching._json(data) == value


@pytest.mark.parametrize(
    ("wanted", "name"), [("nightly", "h/x:nightly"), (DIGEST, f"h/x@{DIGEST}")]
)
def test_a_tag_or_a_digest_names_an_image_of_a_repository(wanted: str, name: str) -> None:
    assert vouching._named("h/x", wanted) == name


def test_an_image_of_the_engine_is_described_as_it_will_be_in_the_registry() -> None:
    plan = planned()
    found = vouching.of_engine(image(plan), "h/x")
    assert (found.repository, found.digest, found.config) == ("h/x", DIGEST, "")
    assert (found.labels, found.platform) == (plan.labels, str(plan.cell.platform))
    assert found.name == tags.of_plan(plan)
    assert found.axes == tags.axes_of(plan.labels, str(plan.cell.platform))
