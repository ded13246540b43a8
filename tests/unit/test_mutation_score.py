"""What `make mutants` calls a miss, in every room and with few mutants, too."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import mutants.__main__ as program
import pytest
from mutants import Mutant, factory
from support import ROOT, forked
from support.score import is_missed


@pytest.mark.parametrize(
    ("tried", "killed", "goal", "missed"),
    [
        (40, 34, 0.85, False),
        (40, 33, 0.85, True),
        (3, 1, 0.85, False),
        (3, 0, 0.85, True),
        (21, 14, 0.85, False),
        (21, 13, 0.85, True),
        (21, 9, 0.85, True),
        (24, 23, 1.0, True),
        (24, 24, 1.0, False),
    ],
)
def test_a_miss_is_a_share_below_the_goal_that_chance_does_not_explain(
    tried: int, killed: int, goal: float, missed: bool
) -> None:
    assert is_missed(tried, killed, goal) is missed


@pytest.mark.parametrize(
    ("killed", "code"),
    [({"a": 40, "b": 34}, 0), ({"a": 40, "b": 33}, 1), ({"a": 0, "b": 40}, 1)],
)
def test_one_room_below_the_goal_fails_the_run_and_names_the_survivors(
    killed: dict[str, int],
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def campaign(_: Path) -> Iterator[Mutant]:
        for room, count in killed.items():
            for number in range(40):
                yield Mutant(subject=room, change=f"{room} {number}", killed=number < count)

    monkeypatch.setattr(factory, "campaign", campaign)
    monkeypatch.setattr(sys, "argv", ["mutants", "factory"])
    assert program.main() == code
    shown = capsys.readouterr()
    assert shown.err.count("survived: ") == 80 - sum(killed.values())
    assert "survived: b: b 39" in shown.err or killed["b"] == 40
    assert f"{sum(killed.values())}, " in shown.out


def test_a_room_is_drawn_from_by_itself_and_alike_with_the_same_seed() -> None:
    first = factory.draw(ROOT, "publishing", 25, 0)
    assert len({(one.path, one.change.number) for one in first}) == 25
    assert {str(one.path.parent) for one in first} == {"imagefactory/publishing"}
    assert factory.draw(ROOT, "publishing", 25, 0) == first
    assert factory.draw(ROOT, "publishing", 25, 1) != first


@pytest.mark.programs
@pytest.mark.parametrize(
    ("body", "passed"),
    [
        ("time.sleep(60)", False),
        ("end = time.process_time() + 0.5\n    while time.process_time() < end: pass", True),
    ],
)
def test_a_test_that_waits_for_nothing_is_ended_and_one_that_works_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, passed: bool
) -> None:
    (tmp_path / "test_it.py").write_text(f"import time\ndef test_it():\n    {body}\n")
    monkeypatch.setattr(forked, "STALLED", 0.2)
    ran = forked.run(tmp_path, ["test_it.py"], seconds=5)
    assert (ran.passed, ran.failed) == (passed, "")


@pytest.mark.programs
def test_a_test_that_works_without_end_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "test_it.py").write_text("def test_it():\n    while True: pass\n")
    monkeypatch.setattr(forked, "ENDLESS", 0)
    assert forked.run(tmp_path, ["test_it.py"], seconds=1) == forked.Ran(passed=False)
