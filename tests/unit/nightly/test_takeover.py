"""Taking over what is new: rows that can be locked, and nothing of those that cannot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from support.watched import NOW, SETTINGS, locked, record, write

from imagefactory import workflows
from imagefactory.errors import CheckFailedError, Problem
from imagefactory.locking import store
from imagefactory.locking.failures import Failure
from imagefactory.locking.locking import Renewed
from imagefactory.matrix import matrix
from imagefactory.matrix.matrix import Matrix
from imagefactory.nightly import takeover
from imagefactory.watching import watching
from imagefactory.workspace import Workspace


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A project whose upstream is the record, in which everything can be locked."""
    project = tmp_path / "project"
    project.mkdir()
    store.write(project / "wheels.lock", locked(write(project)), guards=tmp_path)
    monkeypatch.setattr(watching, "outdated", partial(watching.outdated, upstream=record()))
    monkeypatch.setattr(workflows, "lock", unlockable())
    settings = replace(SETTINGS, state=tmp_path / "state", cache=tmp_path / "cache")
    return Workspace(matrix=project / "matrix.yaml", project=project, settings=settings)


def unlockable(*releases: str, calls: list[bool] | None = None) -> Callable[..., object]:
    """A lock that cannot resolve the cells of these releases."""

    def lock(
        workspace: Workspace, declared: Matrix, _: object, *, upgrade: bool = False
    ) -> tuple[Renewed, bool]:
        if calls is not None:
            calls.append(upgrade)
        bad = [cell.name for cell in declared.cells if cell.vllm in releases]
        problem = Problem(code="lock-no-solution", what="vllm requires torch==9, which is nowhere")
        error = CheckFailedError(problem)
        failures = tuple(Failure(name=one, cells=(one,), error=error, kept=False) for one in bad)
        found = store.read(workspace.lock)
        return Renewed(lock=found, changes=(), failures=failures), False

    return lock


def releases(workspace: Workspace) -> list[str]:
    cells = matrix.load(workspace.matrix).cells
    return list(dict.fromkeys(cell.vllm for cell in cells if cell.flavor.name == "gb10"))


def test_the_news_are_the_candidate_rows_and_what_an_upgrade_would_move(
    workspace: Workspace,
) -> None:
    found = takeover.detect(workspace, "", NOW)
    assert "vllm 0.22.0 -> 0.22.1 (replace, " in found.news[0]
    assert any("vllm 0.29.0 -> 0.33.0" in line and "(new row, " in line for line in found.news)
    assert found.broken == ()


def test_a_hold_that_has_ended_is_among_the_news(workspace: Workspace) -> None:
    hold = "hold: {vllm: {to: '<0.20', reason: broken, until: 2026-01-31}}\n"
    workspace.matrix.write_text(workspace.matrix.read_text() + hold)
    (line,) = [one for one in takeover.detect(workspace, "", NOW).news if "hold" in one]
    assert line.startswith("matrix.yaml:")


def test_a_release_that_is_held_back_is_among_the_news_with_the_reason(
    workspace: Workspace,
) -> None:
    def held() -> list[str]:
        news = takeover.detect(workspace, "", NOW).news
        return [
            one.partition(" is held back: ")[2] for one in news if one.startswith("vllm 0.33.0 is")
        ]

    assert held() == []
    hold = "hold: {vllm: {to: '<0.30', reason: broken, until: 2027-01-31}}\n"
    workspace.matrix.write_text(workspace.matrix.read_text() + hold)
    assert [line.startswith("hold") for line in held()] == [True]


def test_the_fingerprint_changes_with_whatever_a_night_would_act_upon(workspace: Workspace) -> None:
    seen = {takeover.detect(workspace, "", NOW).fingerprint}
    assert takeover.detect(workspace, "", NOW).fingerprint in seen
    seen.add(takeover.detect(workspace, "elsewhere", NOW).fingerprint)
    (workspace.own_patches / "vllm").mkdir(parents=True)
    (workspace.own_patches / "vllm/note").write_text("a")
    seen.add(takeover.detect(workspace, "", NOW).fingerprint)
    (workspace.own_patches / "vllm/note").write_text("b")
    seen.add(takeover.detect(workspace, "", NOW).fingerprint)
    workspace.matrix.write_text(workspace.matrix.read_text() + "# a comment\n")
    seen.add(takeover.detect(workspace, "", NOW).fingerprint)
    assert len(seen) == 5


def test_candidate_rows_are_written_and_everything_is_locked_within_the_policies(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[bool] = []
    monkeypatch.setattr(workflows, "lock", unlockable(calls=calls))
    done = takeover.take(workspace, NOW)
    assert releases(workspace) == ["0.22.1", "0.29.0", "0.33.0"]
    assert calls == [True]
    assert (done.broken, done.stops) == ((), ())
    assert [line.split(" (")[1][:7] for line in done.lines] == ["replace", "new row"]


def test_a_row_that_cannot_be_locked_is_not_taken_over_and_the_others_are(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workflows, "lock", unlockable("0.33.0"))
    done = takeover.take(workspace, NOW)
    assert releases(workspace) == ["0.22.1", "0.29.0"]
    (broken,) = done.broken
    assert broken.where.startswith("row vllm 0.29.0 -> 0.33.0")
    assert broken.problems[0].code == "lock-no-solution"
    assert done.stops == ()


def test_a_cell_that_was_there_and_cannot_be_locked_stops_alone(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workflows, "lock", unlockable("0.29.0"))
    done = takeover.take(workspace, NOW)
    assert releases(workspace) == ["0.22.1", "0.29.0", "0.33.0"]
    assert [name.split("-")[1:4] for name in done.stops] == [["vllm0", "29", "0"]]
    assert [one.where for one in done.broken] == list(done.stops)


def test_a_cell_that_fails_with_and_without_a_refused_row_is_reported_once(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workflows, "lock", unlockable("0.29.0", "0.33.0"))
    done = takeover.take(workspace, NOW)
    assert [one.where.split()[0] for one in done.broken] == ["row", *done.stops]


def test_rows_that_the_file_cannot_take_are_reported_and_the_lock_still_moves(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise CheckFailedError(Problem(code="row-gone", what="the row cannot be found"))

    monkeypatch.setattr(watching, "update", refuse)
    before = workspace.matrix.read_text()
    done = takeover.take(workspace, NOW)
    assert workspace.matrix.read_text() == before
    assert [(one.step, one.problems[0].code) for one in done.broken] == [("row", "row-gone")]
