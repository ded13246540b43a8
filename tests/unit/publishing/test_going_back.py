"""Which image a rollback means."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from imagefactory.errors import InputError
from imagefactory.publishing import ledger, moving
from imagefactory.publishing.moving import Move, State


def move(number: int | None, state: State, digits: str) -> Move:
    digest = f"sha256:{digits}"
    return Move(number=number, state=state, record="r", at="", digest=digest, image="")


#: The latest first; the third was killed, so that it never was in effect.
MOVES = [
    move(0, State.CURRENT, "aa1"),
    move(1, State.PAST, "aa1"),
    move(None, State.UNFINISHED, "ccc"),
    move(2, State.PAST, "ab2"),
    move(3, State.PAST, "123456"),
]


@pytest.mark.parametrize(
    ("to", "digits"),
    [
        (None, "ab2"),  # the one before that is another image
        ("0", "aa1"),
        ("1", "aa1"),
        ("2", "ab2"),
        ("3", "123456"),
        ("123456", "123456"),  # of six digits: a digest
        ("ab", "ab2"),
        ("sha256:ab", "ab2"),
        ("aa", "aa1"),  # twice the same image
        ("a", "rollback-which"),
        ("4", "rollback-where"),
        ("12345", "rollback-where"),
        ("ccc", "rollback-where"),
        ("b2", "rollback-where"),
        ("", "rollback-where"),  # as of a variable that is not set
        ("sha256:", "rollback-where"),
    ],
)
def test_a_number_or_the_first_digits_name_one_image_that_was_in_effect(
    to: str | None, digits: str
) -> None:
    if not digits.startswith("rollback"):
        assert moving._earlier(MOVES, "nightly", to) == f"sha256:{digits}"
        return
    with pytest.raises(InputError) as caught:
        moving._earlier(MOVES, "nightly", to)
    assert [one.code for one in caught.value.problems] == [digits]


def test_the_image_to_go_back_to_is_another_than_the_current_one_wherever_that_is() -> None:
    moves = [move(0, State.ALTERED, "aa1"), move(1, State.CURRENT, "ab2"), *MOVES[3:]]
    assert moving._earlier(moves, "nightly", None) == "sha256:aa1"


def test_a_tag_that_named_one_image_only_has_no_earlier_one() -> None:
    for moves in (MOVES[:3], []):
        with pytest.raises(InputError, match="nightly never named another image"):
            moving._earlier(moves, "nightly", None)


@pytest.mark.parametrize("line", ["{", "[1]", "5", '{"record": "r"}', "[" * 100_000])
def test_a_line_of_the_ledger_that_is_no_entry_is_left_out(tmp_path: Path, line: str) -> None:
    (tmp_path / "ledger").write_text(f"{line}\n")
    assert ledger.read(tmp_path / "ledger") == {}


def test_the_ledger_makes_its_folder_and_waits_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = ledger.Entry(record="r", digest="d", before="", action="promote", by="me", at="t")
    sizes: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda file: sizes.append(os.fstat(file).st_size))
    ledger.append(tmp_path / "new/folder/ledger", entry)
    assert sizes == [(tmp_path / "new/folder/ledger").stat().st_size]
    assert ledger.read(tmp_path / "new/folder/ledger") == {"r": entry}


def test_the_words_for_a_move_are_those_of_the_json() -> None:
    assert {*State} == {"current", "past", "unfinished", "altered", "gone"}


NOW = datetime(2026, 11, 22, 2, 17, tzinfo=UTC)


@pytest.mark.parametrize(
    ("there", "before", "record"),
    [
        ([], "", "20261122T021700Z.aaaaaaaaaaaa new"),
        (["20261121T000000Z.aaaaaaaaaaaa"], "", "20261121T000000Z.aaaaaaaaaaaa"),
        (["20261121T000000Z.bbbbbbbbbbbb"], "", "20261122T021700Z.aaaaaaaaaaaa new"),
        # the tag is there, and only a record of this image says when it came
        (["20261121T000000Z.bbbbbbbbbbbb"], "a", "20261122T021700Z.aaaaaaaaaaaa new"),
        (
            ["20261120T000000Z.aaaaaaaaaaaa", "20261121T000000Z.bbbbbbbbbbbb"],
            "a",
            "20261120T000000Z.aaaaaaaaaaaa",
        ),
        (
            ["20261120T000000Z.aaaaaaaaaaaa", "20261121T000000Z.bbbbbbbbbbbb"],
            "b",
            "20261122T021700Z.aaaaaaaaaaaa new",
        ),
        # by a machine whose clock is ahead
        (["20261122T031700Z.bbbbbbbbbbbb"], "b", "20261122T031701Z.aaaaaaaaaaaa new"),
    ],
)
def test_a_move_has_one_record_however_often_it_is_tried(
    there: list[str], before: str, record: str
) -> None:
    names = [f"nightly.{one}" for one in there] + ["other", f"stable.{'2' * 8}T000000Z.{'a' * 12}"]
    registries = SimpleNamespace(tags=lambda _: names)
    repository: Any = SimpleNamespace(registries=registries, name="x")
    image: Any = SimpleNamespace(digest=f"sha256:{'a' * 64}")
    digest = f"sha256:{before * 64}" if before else ""
    found, is_new = moving._record(repository, image, "nightly", digest, NOW)
    assert f"{found}{' new' if is_new else ''}" == f"nightly.{record}"


@pytest.mark.parametrize(
    "tag", ["0.33.0-cu130-gb10-20261120-1a2b3c4d", "nightly.20261121T000000Z.aaaaaaaaaaaa"]
)
def test_what_is_never_overwritten_has_no_earlier_image(tag: str) -> None:
    nothing: Any = None
    with pytest.raises(InputError, match="is never overwritten"):
        moving.rollback(nothing, tag, None, NOW)
