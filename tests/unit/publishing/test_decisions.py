"""One input changes, and the answer changes: rows of JSON, tags, attachments and moves."""

from __future__ import annotations

import getpass
import json
import socket
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.images import DIGEST, image
from support.plans import planned
from support.promoting import NOW, PATH, attach, labels, repository, verified
from support.promoting import image as stored
from support.registry import FakeRegistry

from imagefactory.errors import CheckFailedError, Problem, SetupError, fail
from imagefactory.publishing import attachments, ledger, moving, publishing, tags
from imagefactory.publishing.ledger import Entry
from imagefactory.publishing.publishing import Delivery, NotPushed, Pushed
from imagefactory.publishing.retention import Item
from imagefactory.system import registry_writes
from imagefactory.system.manifests import Descriptor, Document
from imagefactory.system.registry import MOST_BYTES
from imagefactory.system.registry_writes import Attachment

OTHER = "sha256:" + "b" * 64
PROBLEM = Problem(code="c", what="w", fix="f")


def test_the_rows_of_a_push_have_the_same_keys_whether_it_succeeded_or_not() -> None:
    done = Pushed(
        cell="c", reference="r", digest="d", blobs_sent=1, blobs_there=2, bytes_sent=3
    ).as_dict()
    left = NotPushed(cell="c", reference="r", problems=(PROBLEM,)).as_dict()
    assert done == {
        "cell": "c",
        "reference": "r",
        "digest": "d",
        "blobs_sent": 1,
        "blobs_there": 2,
        "bytes_sent": 3,
        "errors": [],
    }
    unknown = dict.fromkeys(("digest", "blobs_sent", "blobs_there", "bytes_sent"))
    assert left == {"cell": "c", "reference": "r", **unknown, "errors": [PROBLEM.as_dict()]}


def test_the_rows_of_a_push_are_those_that_were_pushed_then_those_that_were_not() -> None:
    done = Pushed(cell="c", reference="r", digest="d", blobs_sent=1, blobs_there=2, bytes_sent=3)
    left = NotPushed(cell="c", reference="s", problems=(PROBLEM,))
    assert Delivery(pushed=(done,), left=(left,)).rows == (done, left)


def test_the_row_of_an_image_that_goes_has_all_that_is_known_of_it() -> None:
    item = Item(digest="d", tags=("t",), why="w", parts=("p",), attached="a", size=5)
    assert item.as_dict() == {
        "digest": "d",
        "tags": ("t",),
        "why": "w",
        "parts": ("p",),
        "attached": "a",
        "size": 5,
    }


def document(digest: str, **row: object) -> Document:
    return Document(digest=digest, media_type="", content=b"", row=row)


@pytest.mark.parametrize(
    ("there", "same"),
    [
        (document(DIGEST), True),
        (document(OTHER), False),
        (document(OTHER, config={"digest": DIGEST}), True),
        (document(OTHER, config={"digest": OTHER}), False),
        (document(OTHER, config={}), False),
        (document(OTHER, config=DIGEST), False),
        (document(OTHER, config=[DIGEST]), False),
    ],
)
def test_the_registry_has_an_image_by_its_digest_or_by_that_of_its_configuration(
    there: Document, same: bool
) -> None:
    assert publishing._is_of(image(planned()), there) is same


class Answers:
    """A registry that has one document after the other under each name."""

    def __init__(self, *documents: Document | None) -> None:
        self.documents = [*documents]

    def document(self, _: str) -> Document | None:
        return self.documents.pop(0)


@pytest.mark.parametrize(
    ("answers", "puts", "code"),
    [
        ((document(DIGEST),), 0, ""),
        ((None, document(DIGEST)), 1, ""),
        ((document(OTHER), document(DIGEST)), 1, ""),
        ((None, None), 1, "push-other-digest"),
        ((document(OTHER), document(OTHER)), 1, "push-other-digest"),
    ],
)
def test_a_tag_is_given_once_and_looked_at_afterwards(
    monkeypatch: pytest.MonkeyPatch, answers: tuple[Document | None, ...], puts: int, code: str
) -> None:
    done: list[object] = []
    monkeypatch.setattr(registry_writes, "put_manifest", lambda *given: done.append(given[1:]))
    registries: Any = Answers(*answers)
    if code:
        with pytest.raises(CheckFailedError) as caught:
            publishing._give(registries, document(DIGEST), "h/x:t")
        (problem,) = caught.value.problems
        assert problem.code == code
        assert ("nothing there" in problem.what) == (answers[-1] is None)
    else:
        publishing._give(registries, document(DIGEST), "h/x:t")
    assert done == [("h/x:t", document(DIGEST))] * puts
    assert registries.documents == []


@pytest.mark.parametrize(
    ("answers", "pushes", "code"),
    [
        ((document(DIGEST),), 0, ""),
        ((None, document(DIGEST)), 1, ""),
        ((document(OTHER),), 0, "push-immutable"),
        ((None, document(OTHER)), 1, "push-other-digest"),
        ((None, None), 1, "push-other-digest"),
    ],
)
def test_an_image_is_sent_unless_it_is_there_and_looked_at_afterwards(
    tmp_path: Path, answers: tuple[Document | None, ...], pushes: int, code: str
) -> None:
    pushed: list[str] = []
    engine: Any = SimpleNamespace(
        registries=Answers(*answers),
        push=pushed.append,
        tag=lambda *_: None,
        untag=lambda *_: None,
        inspect_image=lambda _: SimpleNamespace(digest=OTHER),
    )
    given = engine, image(planned()), "h/x:t", tmp_path
    if code:
        with pytest.raises(CheckFailedError) as caught:
            publishing._send(*given)
        assert caught.value.problems[0].code == code
    else:
        assert publishing._send(*given) == document(DIGEST)
    assert pushed == ["h/x:t"] * pushes


def test_what_failed_says_why_and_the_tags_after_it_that_they_were_not_tried() -> None:
    plan = planned()
    own = image(plan)
    error = fail(SetupError, "registry-cut", "cut", fix="f")
    first, *rest = publishing._left(
        [(plan, own, "h:1"), (plan, own, "h:2"), (plan, own, "h:3")], error
    )
    assert (first.reference, first.problems) == ("h:1", error.problems)
    assert [(one.cell, one.reference) for one in rest] == [(plan.cell.name, f"h:{n}") for n in "23"]
    for one in rest:
        (problem,) = one.problems
        assert (problem.code, "h:1 failed" in problem.what) == ("push-not-tried", True)


@pytest.mark.parametrize(
    ("tag", "alike"), [("gb10-new", 8), ("gb10-old", 5), ("xgb10-new", 0), ("gb10-new-more", 8)]
)
def test_two_names_are_as_alike_as_their_beginnings(tag: str, alike: int) -> None:
    assert publishing._in_common(tag, "gb10-new") == alike


def test_of_what_is_attached_the_last_of_the_wanted_kinds_that_have_a_digest_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attachments, "MOST_READ", 4)
    digests = [f"sha256:{number}{'0' * 63}" for number in range(5)]
    rows = [SimpleNamespace(digest=one, artifact_type="a") for one in digests]
    rows.insert(3, SimpleNamespace(digest="latest", artifact_type="b"))
    rows.append(SimpleNamespace(digest=OTHER, artifact_type="another kind"))
    asked: list[str] = []

    def layer(digest: str) -> Descriptor:
        return Descriptor(digest=digest, media_type="", size=9)

    def manifest(name: str) -> object:
        asked.append(name)
        number = name.partition(":")[2][0]
        layers = {"3": [], "4": [layer("x"), layer("y")]}
        one = layers.get(number, [layer(f"blob {number}")])
        return None if number == "1" else SimpleNamespace(layers=one)

    registries: Any = SimpleNamespace(
        referrers=lambda *_: rows,
        manifest=manifest,
        read_blob=lambda _, digest: None if digest == "x" else digest.encode(),
    )
    read = list(attachments.contents(registries, "h/x", DIGEST, "a", "b"))
    assert asked == [f"h/x@{digest}" for digest in digests[2:]]
    assert read == [b"blob 2", b""]


def test_what_is_too_large_to_be_a_receipt_hides_none_beside_it(
    registry: FakeRegistry, tmp_path: Path
) -> None:
    own, digest = repository(registry, tmp_path), stored(registry, labels("aaaaaaaa"))
    sizes = {b"large": MOST_BYTES + 1, b"largest read": MOST_BYTES}
    rows = [
        Attachment(kind="a", media_type="b", content=content.ljust(size), annotations={})
        for content, size in sizes.items()
    ]
    assert attach(own, digest, *rows)
    read = attachments.contents(own.registries, own.name, digest, "a")
    assert {one.strip() for one in read} == {b"", b"largest read"}


@pytest.mark.parametrize("code", ["", "registry-denied"])
def test_whether_something_could_be_attached_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], code: str
) -> None:
    def attach(*_: object) -> None:
        if code:
            raise fail(SetupError, code, "not you")

    monkeypatch.setattr(registry_writes, "attach", attach)
    nothing: Any = None
    assert attachments.attach(nothing, "h/x", document(DIGEST), []) is (not code)
    assert ("not you" in capsys.readouterr().err) is bool(code)


def test_a_move_and_its_line_in_the_ledger_say_everything(
    registry: FakeRegistry, tmp_path: Path
) -> None:
    own = repository(registry, tmp_path)
    old, new = (verified(registry, tmp_path, labels(key)) for key in ("aaaaaaaa", "bbbbbbbb"))
    moving.promote(own, old, "nightly", NOW)
    done = moving.promote(own, new, "nightly", NOW)
    record = f"nightly.20261122T021701Z.{new[7:19]}"
    assert done == moving.Moved(
        tag=f"{registry.address}/{PATH}:nightly",
        digest=new,
        image=str(tags.of_labels(labels("bbbbbbbb"))),
        before=old,
        record=record,
        moved=True,
        receipt=done.receipt,
    )
    assert done.receipt.startswith("2026-11-20T10:00:00+00:00, level import, ")
    rows = [json.loads(line) for line in own.ledger.read_text().splitlines()]
    by = f"{getpass.getuser()}@{socket.gethostname()}"
    at = "2026-11-22T02:17:00+00:00"
    assert rows[1] == {
        "record": record,
        "digest": new,
        "before": old,
        "action": "promote",
        "by": by,
        "at": at,
    }
    first, second = moving.history(own, "nightly")
    assert first == moving.Move(
        number=0,
        state=moving.State.CURRENT,
        record=record,
        at="2026-11-22T02:17:01+00:00",
        digest=new,
        image=done.image,
        action="promote",
        by=by,
    )
    assert (second.number, second.state, second.digest) == (1, "past", old)
    registry.manifests.clear()
    registry.put(PATH, "other", {})
    assert moving.history(own, "nightly") == []


def test_each_repository_has_a_ledger_of_its_own(registry: FakeRegistry, tmp_path: Path) -> None:
    own = replace(repository(registry, tmp_path), name="h:5000/me/vllm")
    assert own.ledger == tmp_path / "state/history/h_5000_me_vllm.jsonl"
    with own.locked():
        assert own.ledger.with_suffix(".tags.lock").exists()


@pytest.mark.parametrize(("image", "digest"), [(None, "sha256:ab..."), ("there", DIGEST)])
def test_an_image_that_is_gone_is_named_by_the_digits_of_its_record(
    image: str | None, digest: str
) -> None:
    record = tags.Record(tag="nightly", at=NOW, digest="ab")
    there: Any = SimpleNamespace(digest=DIGEST, name="its tag") if image else None
    row = moving._row(record, there, None, moving.State.GONE, None)
    assert (row.digest, row.image, row.action, row.by) == (
        digest,
        "its tag" if image else "",
        "",
        "",
    )
    assert (row.record, row.at) == (str(record), NOW.isoformat())
    known = Entry(record="r", digest="d", before="", action="rollback", by="me", at="t")
    row = moving._row(None, None, 2, moving.State.PAST, known)
    assert (row.number, row.record, row.at, row.digest) == (2, "", "", "sha256:...")
    assert (row.action, row.by, row.state) == ("rollback", "me", "past")


@pytest.mark.parametrize(
    ("there", "raises"), [(document(DIGEST), False), (document(OTHER), True), (None, True)]
)
def test_a_tag_that_somebody_else_moved_meanwhile_is_noticed(
    there: Document | None, raises: bool
) -> None:
    registries: Any = Answers(there)
    moved: Any = SimpleNamespace(digest=DIGEST)
    if not raises:
        moving._confirm(registries, "h/x:t", moved)
        return
    with pytest.raises(SetupError) as caught:
        moving._confirm(registries, "h/x:t", moved)
    (problem,) = caught.value.problems
    assert problem.code == "tag-not-moved"
    assert (there.digest if there else "nothing") in problem.what


@pytest.mark.parametrize(
    ("line", "known"),
    [
        ({}, True),
        ({"by": 5}, False),
        ({"digest": None}, False),
        ({"record": "r2", "action": []}, False),
    ],
)
def test_an_entry_of_the_ledger_has_words_only(
    tmp_path: Path, line: Mapping[str, object], known: bool
) -> None:
    right = {"record": "r", "digest": "d", "before": "", "action": "promote", "by": "me", "at": "t"}
    (tmp_path / "ledger").write_text(json.dumps({**right, **line}))
    assert bool(ledger.read(tmp_path / "ledger")) is known
