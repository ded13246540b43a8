"""Measuring patches and showing it: one input changes, and the answer changes."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.patches import DIFF, PATCH, UNPROVEN, make

from imagefactory.errors import FactoryError, SetupError, fail
from imagefactory.patching import (
    catalog,
    conflicts,
    measure,
    port,
    status,
)
from imagefactory.patching.measure import Measured
from imagefactory.patching.patch import Patch, State, Step
from imagefactory.patching.sources import SourceTree

ROW = {"project": "vllm", "patch": "vllm/one", "version": "1", "reason": "r", "evidence": "e"}


def patch_of(folder: Path, text: str = PATCH) -> Patch:
    make(folder, text=text)
    (found,) = catalog.load(folder / "patches").values()
    return found


def tree_of(root: Path, version: str = "0.22.1") -> SourceTree:
    return SourceTree(project="vllm", version=version, root=root, sha256="ab" * 32)


def measured(state: State = State.NEEDED, **more: str) -> Measured:
    return Measured(**{**ROW, "state": state, **more})  # type: ignore[arg-type]


def test_a_measurement_as_json_has_all_that_is_known_of_it() -> None:
    row = measured(measured_at="t", detail="d")
    assert row.as_dict() == {**ROW, "state": "needed", "measured_at": "t", "detail": "d"}


def test_a_port_as_json_has_all_that_was_done() -> None:
    row = {"patch": "p", "version": "1", "outcome": "o", "base": "b", "did": "d", "detail": "x"}
    made = port.Ported(**row, done=True)
    assert made.as_dict() == {**row, "done": True}


@pytest.mark.parametrize(
    ("kind", "state", "found", "evidence"),
    [
        ("static", State.NEEDED, State.NEEDED, "static proof on abababababab"),
        ("installed", State.NEEDED, State.DECLARED, "declared; its diff applies to abababababab"),
        ("installed", State.BROKEN, State.BROKEN, "installed proof on abababababab"),
        (None, State.UNPROVEN, State.UNPROVEN, "git apply on abababababab"),
    ],
)
def test_what_was_measured_says_how(
    tmp_path: Path, kind: str | None, state: State, found: State, evidence: str
) -> None:
    patch = patch_of(tmp_path, PATCH.replace("static", kind) if kind else UNPROVEN)
    tree = tree_of(tmp_path)
    row = measure._judged(status.step_for(patch, tree), state, "why", tree, "now")
    assert (row.state, row.evidence, row.measured_at) == (found, evidence, "now")
    said = "sources do not show whether it is needed: why" if found is State.DECLARED else "why"
    assert (row.project, row.patch, row.version, row.reason, row.detail) == (
        *("vllm", "vllm/one", "0.22.1"),
        *(said, ""),
    )


@pytest.mark.parametrize(
    ("state", "version", "is_said"),
    [
        (State.CONFLICT, "0.22.1", True),
        (State.UNKNOWN, "0.22.1", True),
        (State.NEEDED, "0.22.1", False),
        (State.BROKEN, "0.22.1", False),
        (State.CONFLICT, "0.25.0", True),  # by the diff of the releases before
        (State.CONFLICT, "0.16.0", False),
    ],
)
def test_where_a_patch_does_not_fit_the_files_that_upstream_moved_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: State, version: str, is_said: bool
) -> None:
    patch, tree = patch_of(tmp_path), tree_of(tmp_path, version)
    given: list[object] = []

    def moved(*diff: object) -> dict[str, str]:
        given.append(diff)
        return {"x.py": "y.py", "a.py": "b.py"}

    monkeypatch.setattr(conflicts, "moved", moved)
    monkeypatch.setattr(conflicts, "explain", lambda *_: "the hunk")
    row = measure._judged(status.step_for(patch, tree), state, "why", tree, "now")
    said = "upstream moved x.py, perhaps to y.py; upstream moved a.py, perhaps to b.py; "
    assert row.reason == (f"{said}why" if is_said else "why")
    assert given == ([(DIFF, tmp_path)] if is_said else [])
    shown = state is State.CONFLICT and version == "0.22.1"
    assert row.detail == ("the hunk" if shown else "")


def test_a_declared_exemption_is_a_row_without_a_measurement(tmp_path: Path) -> None:
    step = Step(patch=patch_of(tmp_path), version="1", variant=None, exempt="never there")
    row = measure._declared(step, tree_of(tmp_path))
    assert row == Measured(
        project="vllm",
        patch="vllm/one",
        version="0.22.1",
        state=State.NOT_APPLICABLE,
        reason="never there",
        evidence="declared",
    )


def test_a_measurement_is_written_and_read_back(tmp_path: Path) -> None:
    rows = [measured(), measured(State.BROKEN, detail="d")]
    measure._write(tmp_path / "new/0.json", rows)
    assert measure._read(tmp_path / "new/0.json") == rows
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["0.json"]


def test_files_that_moved_are_at_their_old_paths_meanwhile(tmp_path: Path) -> None:
    for name in ("new/x.py", "old.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    moved = {"was/x.py": "new/x.py", "old.py": "new/x.py", "gone.py": "lost.py"}
    with measure.at_old_paths(tmp_path, moved):
        assert (tmp_path / "was/x.py").read_text() == "new/x.py"
        assert (tmp_path / "old.py").read_text() == "new/x.py"
        assert not (tmp_path / "gone.py").exists()
    assert not (tmp_path / "was/x.py").exists()
    assert (tmp_path / "old.py").read_text() == "old.py"


@pytest.mark.parametrize(("took", "lines"), [(0.5, 0), (1.0, 0), (2.0, 2)])
def test_a_tree_that_took_time_is_told_with_how_many_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, took: float, lines: int
) -> None:
    now = [0.0]

    def each(tree: SourceTree, steps: list[Step]) -> list[Measured]:
        now[0] += took
        return [measured(patch=step.patch.name, version=tree.version) for step in steps]

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    bench: Any = SimpleNamespace(each=each)
    patch, said = patch_of(tmp_path), list[str]()
    foreign = replace(patch, name="flashinfer/x")
    trees = [tree_of(tmp_path, "0.9"), tree_of(tmp_path, "0.10")]
    rows = status.measure([foreign, patch], trees, bench, said.append)
    assert [row.version for row in rows] == ["0.9", "0.10"]
    assert len(said) == lines
    if lines:
        assert said[0] == "vllm 0.9: 1 patches in 2 s; 1 releases left after 2 s"
        assert said[1] == "vllm 0.10: 1 patches in 2 s; 0 releases left after 4 s"


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5])
def test_every_tree_is_measured_once_however_many_workers_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    threads = list[int]()

    class Pool(ThreadPoolExecutor):
        def __init__(self, workers: int) -> None:
            threads.append(workers)
            super().__init__(workers)

    monkeypatch.setattr(status, "ThreadPoolExecutor", Pool)
    bench: Any = SimpleNamespace(each=lambda tree, _: [measured(version=tree.version)])
    trees = [tree_of(tmp_path, f"0.{number}") for number in range(count)]
    rows = status.measure([], trees, bench)
    assert [row.version for row in rows] == [tree.version for tree in trees]
    assert threads == [min(2, count) or 1]


@pytest.mark.parametrize(("text", "proof"), [(PATCH, "static"), (UNPROVEN, "none")])
def test_the_page_says_how_a_patch_is_proven(tmp_path: Path, text: str, proof: str) -> None:
    page = status.markdown([measured(version="0.22.1")], [patch_of(tmp_path, text)])
    assert f"| vllm/one | fix | {proof} | needed 0.22.1 |" in page.splitlines()
    assert "**vllm/one**: s. f" in page.splitlines()


def test_a_worker_that_is_done_takes_over_from_the_end_of_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    others, done = threading.Event(), list[str]()

    def each(tree: SourceTree, _: object) -> list[Measured]:
        if tree.version == "1":
            assert others.wait(5), "the other worker stopped after its own part"
        else:
            done.append(tree.version)
        if len(done) == 5:
            others.set()
        return [measured(version=tree.version)]

    bench: Any = SimpleNamespace(each=each)
    trees = [tree_of(tmp_path, version) for version in "123456"]
    rows = status.measure([], trees, bench)
    assert [row.version for row in rows] == [*"123456"]
    assert done == [*"456", *"32"]


def test_why_all_sources_are_missing_is_an_error_and_of_some_it_is_kept(tmp_path: Path) -> None:
    def source(_: str, version: str) -> SourceTree:
        if version != "2":
            raise fail(SetupError, "sources-unreachable", f"no {version}", fix="f")
        return tree_of(tmp_path, version)

    bench: Any = SimpleNamespace(each=lambda tree, _: [measured(version=tree.version)])
    pairs = [("vllm", "1"), ("vllm", "2"), ("vllm", "3")]
    rows, failed = status.measure_as_fetched([], pairs, source, bench)
    assert [row.version for row in rows] == ["2"]
    assert failed == {("vllm", "1"): "no 1", ("vllm", "3"): "no 3"}
    assert status.measure_as_fetched([], [], source, bench) == ([], {})
    with pytest.raises(FactoryError, match="no 3"):
        status.measure_as_fetched([], [pairs[0], pairs[2]], source, bench)


def test_a_release_is_measured_while_the_next_ones_are_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    begun, asked = threading.Event(), list[str]()
    both = threading.Barrier(2, timeout=5)

    def source(_: str, version: str) -> SourceTree:
        asked.append(version)
        if version in "13":  # the first of each worker
            both.wait()
        if version in "24":  # the last of each worker
            assert begun.wait(5), "nothing was measured before all were fetched"
        return tree_of(tmp_path, version)

    def each(tree: SourceTree, _: object) -> list[Measured]:
        begun.set()
        return [measured(version=tree.version)]

    bench: Any = SimpleNamespace(each=each)
    pairs = [("vllm", version) for version in "1234"]
    rows, _ = status.measure_as_fetched([], pairs, source, bench)
    assert [row.version for row in rows] == [*"1234"]
    assert {*asked[:2]} == {"1", "3"}
