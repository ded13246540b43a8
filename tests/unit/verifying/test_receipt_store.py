"""The receipts of a machine: whose count, which is kept, and what survives a crash."""

from __future__ import annotations

import base64
import json
import os
import threading
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from support import ROOT
from support.keys import trusting
from support.machine import settings

from imagefactory.errors import InputError
from imagefactory.system import files
from imagefactory.system.signing import NOBODY
from imagefactory.verifying import receipt, receipt_store
from imagefactory.verifying.receipt import CheckResult, Level, Outcome, PatchResult, Receipt
from imagefactory.verifying.receipt_store import Found, ReceiptStore, Refused

GOOD = CheckResult(name="good", outcome=Outcome.PASS, required=True, detail="seen", seconds=1.5)
DIGEST = "sha256:" + "a" * 64
ONE = Receipt(
    digest=DIGEST,
    tag="me/vllm:1",
    cell="c",
    build_key="k",
    verified_at="2026-11-20T10:00:00+00:00",
    checks=(GOOD,),
    version="1",
    level=Level.SERVE,
    inputs={"pin.vllm": "0.33.0"},
    patches=(PatchResult(name="vllm/x", variant="0.33.diff", proof="pass", detail="ok"),),
    tools={"engine": "27"},
    machine={"platform": "linux/arm64"},
)
FAILED = replace(ONE, checks=(replace(GOOD, outcome=Outcome.FAIL),))
CI, SPARK = trusting(b"ci"), trusting(b"spark", b"ci")


def test_a_receipt_travels_to_a_machine_that_trusts_its_key(tmp_path: Path) -> None:
    path = ReceiptStore(folder=tmp_path, trust=CI).save(ONE)
    found = ReceiptStore(folder=tmp_path, trust=SPARK).find(DIGEST)
    assert isinstance(found, Found)
    assert (found.receipt, found.by, found.content) == (ONE, CI.keys[0], path.read_bytes())
    assert "level serve, imagefactory 1, signed by ci (SHA256:" in str(found)
    payload = json.loads(base64.b64decode(json.loads(found.content)["payload"]))
    assert payload["subject"] == [{"name": "me/vllm:1", "digest": {"sha256": "a" * 64}}]
    stranger = ReceiptStore(folder=tmp_path, trust=trusting(b"stranger")).find(DIGEST)
    assert isinstance(stranger, Refused)
    assert "not trusted here" in stranger.why


def test_an_unsigned_receipt_counts_only_where_nobody_is_trusted(tmp_path: Path) -> None:
    ReceiptStore(folder=tmp_path).save(ONE)
    found = ReceiptStore(folder=tmp_path).find(DIGEST)
    assert isinstance(found, Found)
    assert (found.by, str(found).endswith("unsigned")) == (None, True)
    assert ReceiptStore(folder=tmp_path, trust=CI).find(DIGEST) == Refused(
        why=receipt_store.UNSIGNED
    )


@pytest.mark.parametrize(
    ("before", "after", "kept"),
    [
        (Level.GPU, Level.SERVE, 0),  # it would show less
        (Level.SERVE, Level.GPU, 1),
        (Level.SERVE, Level.SERVE, 1),
    ],
)
def test_a_receipt_replaces_one_that_does_not_show_more(
    tmp_path: Path, before: Level, after: Level, kept: int
) -> None:
    store = ReceiptStore(folder=tmp_path, trust=CI)
    both = replace(ONE, level=before), replace(ONE, level=after, verified_at="later")
    for one in both:
        store.save(one)
    assert store.load(DIGEST) == both[kept]
    for last in (replace(FAILED, level=Level.STATIC), replace(ONE, version="2")):
        store.save(last)
        assert store.load(DIGEST) == last


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b'{"schema": 2, "passed": true}', "digest: Field required"),
        (b'{"schema": 2, "tag": "\\ud800"}', "Invalid JSON: "),
        (b"\xff\x00garbage", "'utf-8' codec can't decode"),
        ('{"schema": 2}'.encode("utf-16"), "'utf-8' codec can't decode"),
    ],
)
def test_why_something_is_no_receipt_is_said_in_one_line(content: bytes, why: str) -> None:
    found = receipt_store.read(content, NOBODY, DIGEST)
    assert isinstance(found, Refused)
    assert found.why.startswith(f"it cannot be read: {why}")
    assert "\n" not in found.why


def test_of_several_receipts_the_latest_counts_unless_an_earlier_one_shows_more() -> None:
    def found(hour: int, level: Level = Level.SERVE, *, good: bool = True) -> Found:
        own = replace(ONE if good else FAILED, level=level, verified_at=f"2026-11-20T{hour}")
        return Found(receipt=own, by=None, content=b"")

    gpu, later, failed, again = found(10, Level.GPU), found(11), found(12, good=False), found(13)
    weightiest = receipt_store.weightiest
    assert weightiest([later, Refused(why="x"), gpu, None]) == gpu
    assert weightiest([failed, gpu, later]) == failed
    assert weightiest([again, failed, gpu]) == again
    assert weightiest([Refused(why="x"), None]) is None


class Crashed(BaseException):
    """Ends the process in the middle."""


@pytest.mark.parametrize("at", ["fsync", "replace"])
def test_a_crash_leaves_the_receipt_that_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    store, new = ReceiptStore(folder=tmp_path, trust=CI), replace(ONE, verified_at="later")
    store.save(ONE)

    def crash(*_: object) -> None:
        raise Crashed

    with monkeypatch.context() as patched:
        patched.setattr(os if at == "fsync" else Path, at, crash)
        with pytest.raises(Crashed):
            store.save(new)
    assert store.load(DIGEST) == ONE
    store.save(new)
    assert store.load(DIGEST) == new
    assert {p.name for p in tmp_path.iterdir()} == {store.path(DIGEST).name, "receipts.lock"}


def test_a_receipt_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda _: done.append("fsync"))
    monkeypatch.setattr(Path, "replace", lambda *_: done.append("rename"))
    files.write_durably(tmp_path / "x", b"x")
    assert done == ["fsync", "rename", "fsync"]


def test_two_factories_at_once_leave_whole_receipts(tmp_path: Path) -> None:
    trouble: list[object] = []

    def factory(number: int) -> None:
        store = ReceiptStore(folder=tmp_path, trust=CI)
        for turn in range(4):
            store.save(replace(ONE, verified_at=f"{number} {turn}"))
            found = store.find(DIGEST)
            trouble.extend([] if isinstance(found, Found) else [found])

    threads = [threading.Thread(target=factory, args=(number,)) for number in range(3)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert trouble == []


def test_a_receipt_of_an_older_version_is_read_and_says_so() -> None:
    names = ("digest", "tag", "cell", "build_key", "verified_at", "checks", "version", "passed")
    old = {name: value for name, value in ONE.as_dict().items() if name in names}
    found = receipt.read(json.loads(json.dumps(old)))
    assert (found.schema, found.level, found.checks) == (receipt.OLDEST, Level.IMPORT, ONE.checks)
    with pytest.raises(ValueError, match="a newer version of imagefactory wrote it"):
        receipt.read({**ONE.as_dict(), "schema": receipt.SCHEMA + 1})


def test_what_is_written_is_described_by_the_published_schema() -> None:
    schema = json.loads((ROOT / "docs" / "receipt.schema.json").read_text())
    assert schema == receipt.json_schema()
    rows = json.loads(json.dumps(ONE.as_dict()))
    jsonschema.validate(rows, schema)
    for wrong in ({"more": 1}, {"level": "all"}, {"schema": 1}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**rows, **wrong}, schema)


def test_the_keys_of_a_project_are_beside_its_matrix(tmp_path: Path) -> None:
    own = settings(tmp_path)
    assert receipt_store.of(own, tmp_path).trust.keys == ()
    (tmp_path / receipt_store.TRUSTED).write_text(CI.keys[0].line)
    assert receipt_store.of(own, tmp_path).trust.keys == CI.keys
    (tmp_path / receipt_store.TRUSTED).write_text("x")
    with pytest.raises(InputError):
        receipt_store.of(own, tmp_path)
