"""What the site shows of each night: what is carried over, what is unknown, and what changed."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from support.recorded import cell, failure, night

from imagefactory.dashboard import history
from imagefactory.dashboard.history import Change
from imagefactory.nightly.record import CellRecord, CellState, PatchRecord
from imagefactory.nightly.values import State

KEYS = {"digest": "sha256:new", "build_key": "new"}
NAME = "gb10-vllm0.33.0"


def test_a_night_without_anything_new_has_the_green_cells_of_the_night_before() -> None:
    broke = cell("b", "failed", failures=(failure(where="b"),))
    quiet = history.of([night(0, cell("a"), broke), night(1)]).last
    assert {name: one.state for name, one in quiet.cells.items()} == {"a": CellState.UNCHANGED}
    assert (quiet.cells["a"].size, quiet.cells["a"].seconds) == (12_100_000_000, None)


def test_of_a_day_only_the_runs_that_did_something_are_shown() -> None:
    hours = [timedelta(hours=number) for number in range(4)]
    runs = [night(day) for day in (0, 0, 1, 1)]
    runs = [replace(one, began=one.began + add) for one, add in zip(runs, hours, strict=True)]
    runs[2] = replace(runs[2], cells=(cell(),), state=State.GREEN)
    assert [one.record for one in history.of(reversed(runs)).nights] == runs[1:3]


def test_a_night_in_which_the_clock_was_set_back_took_no_time() -> None:
    one = night(0, cell())
    back = replace(one, ended=one.began - timedelta(hours=1))
    assert [history.of([made]).last.minutes for made in (one, back)] == [40, 0]


@pytest.mark.parametrize(
    ("now", "size"),
    [
        ({"digest": None}, 12_100_000_000),
        ({}, 12_100_000_000),
        ({"digest": "sha256:other"}, None),
        ({"build_key": "other", "digest": None}, None),
        ({"build_key": None, "digest": None}, None),
    ],
)
def test_a_size_is_carried_over_only_for_the_same_image(
    now: dict[str, Any], size: int | None
) -> None:
    later = cell(state="unchanged", size=None, **now)
    assert history.of([night(0, cell()), night(1, later)]).last.cells[NAME].size == size


@pytest.mark.parametrize(
    ("before", "after", "changes"),
    [
        (cell(), cell(state="unchanged", seconds=None), []),
        (cell(), cell(**KEYS), [("images", "new image")]),
        (cell(digest=None, build_key=None), cell(**KEYS), []),
        (
            cell(),
            cell(versions={"vllm": "0.34.0", "torch": "2.14.0"}),
            [("versions", "vllm 0.33.0 → 0.34.0")],
        ),
        (cell(), cell(versions={}), []),
        (cell(), cell(versions={"vllm": "0.33.0"}), [("versions", "torch 2.14.0 → none")]),
        (
            cell(),
            cell(state="failed", failures=(failure(),), **KEYS),
            [("states", "green → build failed")],
        ),
        (cell(state="stopped"), cell(), [("states", "stopped → green")]),
        (None, cell(state="left"), [("cells", "new (left)")]),
        (cell(), None, [("cells", "removed")]),
    ],
)
def test_what_changed_of_a_cell(
    before: CellRecord | None, after: CellRecord | None, changes: list[tuple[str, str]]
) -> None:
    old, new = ({one.name: one for one in (cell,) if one} for cell in (before, after))
    found = history.between(old, new, {}, {})
    assert found == tuple(Change(kind=kind, what=what, cells=(NAME,)) for kind, what in changes)


def test_cells_that_changed_alike_are_one_change_and_states_come_first() -> None:
    names = ("a", "b")
    nights = [
        night(0, *map(cell, names)),
        night(1, *(cell(name, versions={"vllm": "0.34.0"}) for name in names), cell("c", "left")),
    ]
    assert [(one.kind, one.cells) for one in history.of(nights).last.changes] == [
        ("versions", names),
        ("versions", names),
        ("cells", ("c",)),
    ]


def test_states_of_patches_stand_until_they_are_measured_again() -> None:
    one = PatchRecord(patch="vllm/mine", version="0.33.0", state="needed")
    nights = history.of(
        [
            night(0, cell()),
            night(1, cell(), patches=(one,)),
            night(2, cell()),
            night(3, cell(), patches=(replace(one, state="obsolete"),)),
        ]
    ).nights
    assert [[change.what for change in one.changes] for one in nights] == [
        [],
        ["vllm/mine on 0.33.0: needed"],
        [],
        ["vllm/mine on 0.33.0: needed → obsolete"],
    ]
    assert nights[2].patches == {("vllm/mine", "0.33.0"): "needed"}
