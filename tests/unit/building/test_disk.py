"""A build that cannot fit the disk says so before it starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.plans import planned

from imagefactory.building import disk

WHEELS = disk.wheels_of([planned()])


def test_wheels_that_cells_share_count_once() -> None:
    assert WHEELS > 4e9
    assert disk.wheels_of([planned(), planned()]) == WHEELS


@pytest.mark.parametrize(
    ("times", "code"),
    [
        (disk.ENGINE.peak, None),
        (disk.ENGINE.peak - 1, "disk-short"),
        (disk.ENGINE.image, "disk-short"),
        (1, "disk-full"),
    ],
)
def test_a_build_that_may_not_fit_is_warned_of_and_one_that_cannot_is_refused(
    times: float, code: str | None
) -> None:
    problem = disk.judge([planned()], round(WHEELS * times))
    assert (problem.code if problem else None) == code


def test_a_build_into_a_folder_needs_less() -> None:
    available = round(WHEELS * disk.FOLDER.peak)
    assert disk.judge([planned()], available, disk.FOLDER) is None
    assert disk.judge([planned()], available, disk.ENGINE) is not None


def test_both_sides_are_told_in_gib() -> None:
    problem = disk.judge([planned()], 2 * disk.GIB)
    assert problem is not None
    assert "the engine's disk has 2 GiB free" in problem.what


def test_an_engine_on_another_machine_is_not_judged(tmp_path: Path) -> None:
    assert disk.free(str(tmp_path)) is not None
    assert disk.free(str(tmp_path / "elsewhere")) is None
    assert disk.judge([planned()], None) is None
