"""``imagefactory prune`` as a user sees it: what asks, and what is on standard output."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest
import typer
from support.program import Run, run

from imagefactory import workflows
from imagefactory.upkeep import upkeep
from imagefactory.upkeep.prune import Item, Kind, Pruning

__all__ = ["run"]
#: What reads an answer.
PROMPT = f"{typer.confirm.__module__}.visible_prompt_func"


@pytest.fixture
def removed(monkeypatch: pytest.MonkeyPatch) -> list[Item]:
    """What was removed of one old image; standard input is a terminal."""
    item = Item(kind=Kind.IMAGE, name="vllm:old", size=7, why="no cell has it")
    found: list[Item] = []

    def remove(items: list[Item], _: object) -> tuple[list[object], int]:
        found.extend(items)
        return [], 7

    monkeypatch.setattr(
        workflows, "survey", lambda *_, **__: (Pruning(items=(item,), kept=()), None)
    )
    monkeypatch.setattr(upkeep, "remove", remove)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    return found


def test_json_is_all_that_is_on_standard_output_and_nobody_is_asked(
    run: Run, removed: list[Item]
) -> None:
    done = run("prune", "--json")
    assert json.loads(done.out)["removed"] is False
    assert "nothing was removed: use --yes" in done.err
    assert removed == []
    assert json.loads(run("prune", "--json", "--yes").out)["removed"] is True
    assert [one.name for one in removed] == ["vllm:old"]


@pytest.mark.parametrize(("answer", "number"), [("y", 1), ("n", 0)])
def test_a_person_is_asked_on_standard_error(
    run: Run, removed: list[Item], monkeypatch: pytest.MonkeyPatch, answer: str, number: int
) -> None:
    monkeypatch.setattr(PROMPT, lambda _: answer)
    done = run("prune")
    assert "vllm:old" in done.out
    assert "Remove all of this?" not in done.out
    assert len(removed) == number
