"""Checking a cell's series before the build: what stops it, what is shown, what is skipped."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.machine import settings
from support.matrices import write as write_matrix
from support.patches import PATCH, UNPROVEN, make
from support.sources import index

from imagefactory.inbuild import proofkit
from imagefactory.matrix import matrix
from imagefactory.matrix.cell import Cell
from imagefactory.patching import catalog, check, conflicts, sources
from imagefactory.patching.measure import Bench

pytestmark = pytest.mark.programs

__all__ = ["index"]

RED_WITHOUT = """\
import pathlib, sys
text = (pathlib.Path(sys.argv[1]) / "x.py").read_text()
print("saw", text.split())
raise SystemExit(0 if "zwei" in text else 1)
"""


def checked(tmp_path: Path, url: str, **files: str) -> check.Checked:
    folder = make(tmp_path)
    (folder / "proof.py").write_text(RED_WITHOUT)
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    cell = _cell(tmp_path, "0.22.1")
    steps = catalog.series(catalog.load(tmp_path / "patches"), cell)
    using = settings(tmp_path, url)
    return check.check(cell, steps, Bench(using), None, using)


def _cell(tmp_path: Path, version: str) -> Cell:
    return next(c for c in matrix.load(write_matrix(tmp_path)).cells if c.axes["vllm"] == version)


def test_a_series_that_works_does_not_stop_the_build(tmp_path: Path, index: str) -> None:
    done = checked(tmp_path, index)
    assert [row.state for row in done.rows] == ["needed"]
    assert done.problems == ()


def test_a_conflict_shows_the_hunk_and_the_file_around_it_and_says_how_to_port(
    tmp_path: Path, index: str
) -> None:
    done = checked(
        tmp_path, index, a_diff="--- a/x.py\n+++ b/x.py\n@@ -1,2 +1,2 @@\n eins\n-two\n+zwei\n"
    )
    (problem,) = done.problems
    assert problem.code == "patch-conflict"
    assert problem.where == "patches/vllm/one/patch.yaml:8"
    assert "hunk 1 of 1" in problem.detail
    assert "      -two" in problem.detail
    assert "?     1 one" in problem.detail
    assert "=     2 two" in problem.detail
    assert problem.fix.startswith("imagefactory patch port vllm/one --to 0.22.1")


def test_a_conflict_with_sources_of_no_release_is_to_be_taken_out_of_the_flavor(
    tmp_path: Path, index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_cell = sources.of_cell
    monkeypatch.setattr(sources, "of_cell", lambda *args: replace(of_cell(*args), released=False))
    diff = "--- a/x.py\n+++ b/x.py\n@@ -1,2 +1,2 @@\n eins\n-two\n+zwei\n"
    (problem,) = checked(tmp_path, index, a_diff=diff).problems
    assert problem.code == "patch-conflict"
    assert problem.fix.endswith("remove vllm/one from flavor gb10")
    assert "patch port" not in problem.fix


def test_a_patch_that_applies_without_fixing_anything_is_broken_and_not_a_conflict(
    tmp_path: Path, index: str
) -> None:
    done = checked(
        tmp_path, index, a_diff="--- a/x.py\n+++ b/x.py\n@@ -1,2 +1,2 @@\n one\n-two\n+drei\n"
    )
    (problem,) = done.problems
    assert problem.code == "patch-broken"
    assert problem.detail == ""


def test_a_patch_without_a_variant_stops_the_cell_only_if_its_proof_fails(
    tmp_path: Path, index: str
) -> None:
    text = PATCH.replace('">=0.22,<0.23"', '">=0.21,<0.22"')
    (problem,) = checked(tmp_path, index, patch_yaml=text).problems
    assert problem.code == "patch-conflict"
    assert "no variant" in problem.what


@pytest.mark.parametrize(("old", "state"), [("one", "unproven"), ("eins", "conflict")])
def test_a_patch_without_a_proof_stops_the_cell_if_it_does_not_apply(
    tmp_path: Path, index: str, old: str, state: str
) -> None:
    diff = f"--- a/x.py\n+++ b/x.py\n@@ -1,2 +1,2 @@\n {old}\n-two\n+zwei\n"
    done = checked(tmp_path, index, a_diff=diff, patch_yaml=UNPROVEN)
    assert [(row.state, row.evidence[:9]) for row in done.rows] == [(state, "git apply")]
    assert bool(done.problems) is (state == "conflict")


def test_a_patch_without_a_proof_stops_a_cell_that_it_has_no_diff_for(
    tmp_path: Path, index: str
) -> None:
    text = UNPROVEN.replace('">=0.22,<0.23"', '">=0.21,<0.22"')
    (problem,) = checked(tmp_path, index, patch_yaml=text).problems
    assert problem.code == "patch-conflict"
    assert "`not_applicable`" in problem.fix


def test_a_declared_exemption_is_neither_proven_nor_applied(tmp_path: Path, index: str) -> None:
    text = PATCH + 'not_applicable:\n  - {versions: "==0.22.1", reason: never there}\n'
    done = checked(tmp_path, index, patch_yaml=text, proof_py="raise SystemExit(1)")
    assert [(row.state, row.reason) for row in done.rows] == [("n/a", "never there")]
    assert done.problems == ()


def test_an_inconclusive_result_is_not_cached(tmp_path: Path, index: str) -> None:
    done = checked(tmp_path, index, proof_py="raise SystemExit(3)")
    assert [row.state for row in done.rows] == ["unknown"]
    assert not list((tmp_path / "cache").glob("proofs/*.json"))


def test_a_proof_whose_tools_are_missing_is_inconclusive_and_not_run(
    tmp_path: Path, index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(proofkit.CUDA, raising=False)
    text = PATCH.replace("kind: static", "kind: nvcc\n  needs: [nvcc]")
    done = checked(tmp_path, index, patch_yaml=text, proof_py="raise SystemExit(1)")
    reason = f"inconclusive: needs a CUDA toolchain in {proofkit.CUDA}"
    assert [(row.state, row.reason) for row in done.rows] == [("unknown", reason)]
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/nvcc").touch(0o755)
    monkeypatch.setenv(proofkit.CUDA, str(tmp_path))
    steps = catalog.series(catalog.load(tmp_path / "patches"), _cell(tmp_path, "0.22.1"))
    using = settings(tmp_path, index)
    done = check.check(_cell(tmp_path, "0.22.1"), steps, Bench(using), None, using)
    assert [row.state for row in done.rows] == ["broken"]


COUNTING = """\
import pathlib, sys
with (pathlib.Path(__file__).parent / "runs").open("a") as runs:
    runs.write("x")
text = (pathlib.Path(sys.argv[1]) / "x.py").read_text()
print("saw", text.split())
raise SystemExit(0 if {word!r} in text else 1)
"""


def test_a_change_in_the_last_patch_reruns_only_its_own_proof(tmp_path: Path, index: str) -> None:
    first, second = make(tmp_path), make(tmp_path, "vllm/two")
    (first / "proof.py").write_text(COUNTING.format(word="zwei"))
    (second / "proof.py").write_text(COUNTING.format(word="drei"))
    path = write_matrix(tmp_path, "[vllm/one]", "[vllm/one, vllm/two]")
    cell = next(c for c in matrix.load(path).cells if c.axes["vllm"] == "0.22.1")
    using = settings(tmp_path, index)

    def states(last: str) -> dict[str, str]:
        (second / "a.diff").write_text(
            f"--- a/x.py\n+++ b/x.py\n@@ -1,2 +1,2 @@\n one\n-zwei\n+{last}\n"
        )
        steps = catalog.series(catalog.load(tmp_path / "patches"), cell)
        return {
            row.patch: row.state for row in check.check(cell, steps, Bench(using), None, using).rows
        }

    def runs() -> tuple[int, int]:
        return len((first / "runs").read_text()), len((second / "runs").read_text())

    assert states("zwei drei") == {"vllm/one": "needed", "vllm/two": "needed"}
    assert runs() == (2, 2)
    assert states("drei zwei") == {"vllm/one": "needed", "vllm/two": "needed"}
    assert runs() == (2, 4)
    assert states("vier") == {"vllm/one": "needed", "vllm/two": "broken"}
    assert runs() == (2, 6)
    assert states("zwei drei") == {"vllm/one": "needed", "vllm/two": "needed"}
    assert runs() == (2, 6)


def test_a_file_that_moved_is_found_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new/x.py").write_text("one\n")
    text = conflicts.explain("--- a/old/x.py\n+++ b/old/x.py\n@@ -1 +1 @@\n-one\n+zwei\n", tmp_path)
    assert text.splitlines() == ["old/x.py: does not exist", "    a file with that name: new/x.py"]


def test_a_patch_cannot_create_a_file_that_exists_already(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("one\n")
    text = conflicts.explain("--- /dev/null\n+++ b/x.py\n@@ -0,0 +1 @@\n+one\n", tmp_path)
    assert "exists already" in text


lines = st.lists(st.sampled_from(["a", "b", "c", "d", ""]), min_size=1, max_size=12)


@given(lines, lines, st.integers(min_value=0, max_value=20))
def test_the_best_match_is_inside_the_file(text: list[str], wanted: list[str], guess: int) -> None:
    assert 0 <= conflicts.best_match(text, wanted, guess) < len(text)


@pytest.mark.parametrize("start", [0, 2, 5])
def test_the_best_match_is_where_the_lines_are(start: int) -> None:
    text = ["x"] * 8
    text[start : start + 2] = ["one", "two"]
    assert conflicts.best_match(text, ["one", "two"], 4) == start
