"""Which image a rollback means."""

from __future__ import annotations

from pathlib import Path

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


def test_a_tag_that_named_one_image_only_has_no_earlier_one() -> None:
    for moves in (MOVES[:3], []):
        with pytest.raises(InputError, match="nightly never named another image"):
            moving._earlier(moves, "nightly", None)


@pytest.mark.parametrize("line", ["{", "[1]", "5", '{"record": "r"}', "[" * 100_000])
def test_a_line_of_the_ledger_that_is_no_entry_is_left_out(tmp_path: Path, line: str) -> None:
    (tmp_path / "ledger").write_text(f"{line}\n")
    assert ledger.read(tmp_path / "ledger") == {}
