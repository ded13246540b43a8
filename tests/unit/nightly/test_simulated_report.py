"""What the simulated year counts as taken over unaided, by hand or not at all."""

from __future__ import annotations

from datetime import UTC, datetime

import simulated_report
from simulated_report import BY_HAND, NEVER, UNAIDED, Night

RELEASES = {
    f"0.{minor}.0": datetime(2026, 3, day, 9, tzinfo=UTC)
    for minor, day in ((17, 1), (18, 10), (19, 20), (20, 28))
}


def night(day: int, state: str, newest: str, **more: object) -> Night:
    empty = {"broken": [], "hands": [], "did": [], "held": "", "patches": {}, "wrong": []}
    return {"day": f"2026-03-{day:02}", "state": state, "newest": newest, **empty, **more}


NIGHTS = [
    night(2, "green", "0.17.0", did=["vllm/one on 0.17.0: merged, added 0.17.diff"]),
    night(3, "broken", "0.17.0", broken=["upstream (detect): HTTP 503"]),
    night(4, "nothing new", "0.17.0"),
    night(11, "broken", "0.18.0", broken=["vllm/one (port): conflict"], hands=["wrote a diff"]),
    night(12, "green", "0.18.0"),
    night(21, "nothing new", "0.18.0", held="0.19.0: built for cu130", hands=["changed it"]),
    night(22, "green", "0.19.0"),
    night(29, "green", "0.19.0"),
]


def test_a_release_that_needed_hands_or_was_never_green_does_not_count() -> None:
    rows = simulated_report.taken(RELEASES, NIGHTS)
    assert [row.outcome for row in rows] == [UNAIDED, BY_HAND, BY_HAND, NEVER]
    assert [row.night[-2:] for row in rows] == ["02", "12", "22", ""]
    assert rows[0].ported == ("one merged",)
    assert rows[1].why == ("vllm/one (port): conflict", "wrote a diff")
    assert rows[2].why == ("0.19.0: built for cu130", "changed it")
    assert simulated_report.share(rows).startswith("1 of 4 releases were taken over unaided")


def test_a_night_that_broke_and_repaired_itself_is_a_false_alarm() -> None:
    assert [one["day"][-2:] for one in simulated_report.false_alarms(NIGHTS)] == ["03"]
