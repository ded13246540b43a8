"""The published page of states: its ranges are those of its tables, and one wrong cell is seen."""

from __future__ import annotations

import re

import pytest
from support.project import stock_patches
from support.status_page import PAGE, drawn, published

from imagefactory.patching import status

PATCHES = list(stock_patches().values())


def written_again(page: str) -> str:
    return status.markdown(status.by_patch(published(page)), PATCHES)


def test_the_page_is_written_from_the_states_in_its_own_tables() -> None:
    page = PAGE.read_text()
    assert len(published(page)) > 300
    assert written_again(page) == page


def test_a_wrong_state_in_a_table_is_seen() -> None:
    page = PAGE.read_text()
    wrong = re.sub(r"^(\| 0\.22\.1 \| )obsolete", r"\1needed", page, count=1, flags=re.MULTILINE)
    assert wrong != page
    assert written_again(wrong) != wrong


def test_what_is_drawn_depends_on_the_seed_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEED", "1")
    first = drawn(range(100), 4)
    assert (len(set(first)), drawn(range(100), 4)) == (4, first)
    monkeypatch.setenv("SEED", "2")
    assert drawn(range(100), 4) != first
