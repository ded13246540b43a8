"""How long builds took: kept, bounded, and never a reason to fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.texts import any_text

from imagefactory.building.timings import KEPT, Timings, Took


def cold(what: str, seconds: float) -> Took:
    return Took(what=what, warm=False, seconds=seconds)


def test_an_estimate_is_the_median_of_the_last_builds_of_that_kind(tmp_path: Path) -> None:
    Timings(tmp_path).add([cold("gb10", 5000), *(cold("gb10", n) for n in range(100, 100 + KEPT))])
    Timings(tmp_path).add([Took(what="gb10", warm=True, seconds=7)])
    timings = Timings(tmp_path)
    assert timings.estimate("gb10", warm=False) == 102
    assert timings.estimate("gb10", warm=True) == 7
    assert timings.estimate("cpu", warm=True) is None


def test_two_processes_keep_what_the_other_one_wrote(tmp_path: Path) -> None:
    one, two = Timings(tmp_path), Timings(tmp_path)
    one.add([cold("a", 1)])
    two.add([cold("b", 2)])
    assert Timings(tmp_path).estimate("a", warm=False) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["timings.json"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=10)
@given(
    st.one_of(
        st.binary(),
        st.recursive(
            st.none() | st.booleans() | st.floats() | any_text(),
            lambda inner: (
                st.lists(inner) | st.dictionaries(st.sampled_from(["gb10", "cold", "warm"]), inner)
            ),
            max_leaves=6,
        ).map(lambda value: json.dumps(value).encode()),
    )
)
def test_whatever_the_file_holds_is_no_reason_to_fail(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "timings.json").write_bytes(content)
    Timings(tmp_path).estimate("gb10", warm=False)
    Timings(tmp_path).add([cold("gb10", 3), cold("gb10", 3), cold("gb10", 3)])
    assert (Timings(tmp_path).estimate("gb10", warm=False) or 0) >= 0


def test_a_folder_that_cannot_be_written_is_no_reason_to_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    timings = Timings(tmp_path / "file")
    timings.add([cold("gb10", 3)])
    assert timings.estimate("gb10", warm=False) == 3
