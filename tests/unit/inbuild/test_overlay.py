"""The program that applies a series inside the builder stage."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from imagefactory.inbuild import overlay

pytestmark = pytest.mark.programs

PROOF = """\
import pathlib, sys
text = (pathlib.Path(sys.argv[1]) / "{file}").read_text()
ok = "{word}" in text
print("{word} is there" if ok else "no {word}")
sys.exit(0 if ok else 1)
"""
DIFF = """\
--- a/{file}
+++ b/{file}
@@ -1,3 +1,3 @@
 one
-two
+{word}
 three
"""


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("a.py", "b.py"):
        write(tmp_path / "tree" / name, "one\ntwo\nthree\n")
    return tmp_path / "tree"


def step(
    folder: Path, name: str, file: str, word: str, *, diff: str | None = None
) -> tuple[str, Path | None, Path]:
    return (
        name,
        write(folder / f"{name}.diff", DIFF.format(file=file, word=word) if diff is None else diff),
        write(folder / f"{name}.py", PROOF.format(file=file, word=word)),
    )


def content(tree: Path) -> dict[str, str]:
    return {str(p.relative_to(tree)): p.read_text() for p in sorted(tree.rglob("*")) if p.is_file()}


def test_a_patch_whose_proof_turns_from_red_to_green_is_needed_and_its_post_state_is_recorded(
    tmp_path: Path, tree: Path
) -> None:
    (done,) = overlay.apply_series(tree, [step(tmp_path, "p", "a.py", "zwei")])
    assert done.state == "needed"
    assert done.files == {"a.py": hashlib.sha256(b"one\nzwei\nthree\n").hexdigest()}


def test_a_patch_whose_proof_is_green_on_the_pristine_tree_is_obsolete_and_left_out(
    tmp_path: Path, tree: Path
) -> None:
    before = content(tree)
    (done,) = overlay.apply_series(
        tree, [step(tmp_path, "p", "a.py", "two", diff=DIFF.format(file="a.py", word="x"))]
    )
    assert (done.state, done.files) == ("obsolete", {})
    assert content(tree) == before


def test_a_hunk_that_matches_only_with_fuzz_is_a_conflict(tmp_path: Path, tree: Path) -> None:
    fuzzy = DIFF.format(file="a.py", word="zwei").replace(" three", " drei")
    (done,) = overlay.apply_series(tree, [step(tmp_path, "p", "a.py", "zwei", diff=fuzzy)])
    assert done.state == "conflict"
    assert "a.py" in done.detail


def test_a_patch_that_applies_and_changes_nothing_that_matters_is_broken(
    tmp_path: Path, tree: Path
) -> None:
    harmless = DIFF.format(file="a.py", word="other")
    before = content(tree)
    (done,) = overlay.apply_series(tree, [step(tmp_path, "p", "a.py", "zwei", diff=harmless)])
    assert done.state == "broken"
    assert content(tree) == before


def test_one_failing_patch_leaves_the_tree_byte_identical_and_hides_no_other(
    tmp_path: Path, tree: Path
) -> None:
    before = content(tree)
    done = overlay.apply_series(
        tree,
        [
            step(
                tmp_path, "first", "a.py", "zwei", diff=DIFF.format(file="missing.py", word="zwei")
            ),
            step(tmp_path, "second", "b.py", "zwei"),
            step(tmp_path, "third", "b.py", "nichts", diff=DIFF.format(file="b.py", word="nichts")),
        ],
    )
    assert [d.state for d in done] == ["conflict", "needed", "conflict"]
    assert content(tree) == before


def test_a_missing_variant_for_a_needed_patch_is_a_conflict_rather_than_silence(
    tmp_path: Path, tree: Path
) -> None:
    name, _, proof = step(tmp_path, "p", "a.py", "zwei")
    (done,) = overlay.apply_series(tree, [(name, None, proof)])
    assert done.state == "conflict"


@pytest.mark.parametrize(
    ("verdict", "state"), [(overlay.INCONCLUSIVE, "unknown"), (overlay.SYMPTOM, "conflict")]
)
def test_a_file_that_is_gone_is_a_conflict_only_if_the_proof_fails(
    tmp_path: Path, tree: Path, verdict: int, state: str
) -> None:
    diff = DIFF.format(file="missing.py", word="zwei")
    moved = step(tmp_path, "p", "a.py", "zwei", diff=diff)
    (done,) = overlay.apply_series(tree, [moved], lambda _script, _tree: (verdict, "said"))
    assert done.state == state
    assert "missing.py" in done.detail


def test_offsets_are_reported(tmp_path: Path, tree: Path) -> None:
    write(tree / "a.py", "zero\n" * 5 + "one\ntwo\nthree\n")
    moved = DIFF.format(file="a.py", word="zwei").replace("-1,3 +1,3", "-3,3 +3,3")
    (done,) = overlay.apply_series(tree, [step(tmp_path, "p", "a.py", "zwei", diff=moved)])
    assert done.state == "needed"
    assert "offset 3 lines" in done.offsets[0]


def test_a_proof_that_crashes_is_never_taken_for_a_success(tmp_path: Path, tree: Path) -> None:
    name, diff, _ = step(tmp_path, "p", "a.py", "zwei")
    (done,) = overlay.apply_series(
        tree, [(name, diff, write(tmp_path / "crash.py", "raise SystemExit(7)"))]
    )
    assert done.state == "unknown"


@pytest.mark.parametrize(
    ("before", "after", "state"),
    [
        (0, None, "obsolete"),
        (1, 0, "needed"),
        (1, 1, "broken"),
        (1, 3, "broken"),
        (3, 0, "unknown"),
        (3, 1, "broken"),
        (3, 3, "unknown"),
    ],
)
def test_only_a_proof_that_turns_from_red_to_green_shows_that_a_patch_is_needed(
    tmp_path: Path, tree: Path, before: int, after: int | None, state: str
) -> None:
    codes = iter([before, after])
    seen: list[str] = []

    def prover(_: Path, where: Path) -> tuple[int, str]:
        seen.append((where / "a.py").read_text())
        code = next(codes)
        assert code is not None
        return code, f"exit {code}"

    (done,) = overlay.apply_series(tree, [step(tmp_path, "p", "a.py", "zwei")], prover)
    assert done.state == state
    assert ["zwei" in text for text in seen] == ([False] if after is None else [False, True])
    kept = state in ("needed", "unknown")
    assert ("zwei" in (tree / "a.py").read_text()) == kept
    assert (done.files != {}) == kept


@pytest.mark.parametrize(
    ("code", "verdict"), [(0, 0), (1, 1), (2, 3), (3, 3), (7, 3), (-9, 3), (120, 3)]
)
def test_a_proof_has_three_verdicts_and_anything_else_is_inconclusive(
    tmp_path: Path, tree: Path, monkeypatch: pytest.MonkeyPatch, code: int, verdict: int
) -> None:
    done = subprocess.CompletedProcess([], code, "first\n\nlast\n \n", "a warning\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    assert overlay.prove(tmp_path / "proof.py", tree) == (verdict, "last")
    done.stdout = " \n"
    assert overlay.prove(tmp_path / "proof.py", tree) == (verdict, "a warning")
    done.stderr = ""
    assert overlay.prove(tmp_path / "proof.py", tree) == (verdict, f"exit {code}")


def test_a_proof_that_does_not_end_is_inconclusive(
    tmp_path: Path, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def endless(*_: object, timeout: float, **__: object) -> None:
        raise subprocess.TimeoutExpired([], timeout)

    monkeypatch.setattr(subprocess, "run", endless)
    code, saw = overlay.prove(tmp_path / "proof.py", tree)
    assert (code, str(overlay.PROOF_SECONDS) in saw) == (overlay.INCONCLUSIVE, True)


@pytest.mark.parametrize(
    ("row", "state"),
    [
        ({"exempt": "not here"}, "n/a"),
        ({"compiled": ["a*.py", "b.py"]}, "compiled in"),
        ({"compiled": ["a.py", "no*.so"]}, "broken"),
        ({"in_wheel": "yes", "proof": "two.py", "diff": None}, "in the wheel"),
        ({"in_wheel": "yes", "proof": "zwei.py", "diff": None}, "broken"),
        ({"in_wheel": "yes", "proof": "two.py", "diff": "zwei.diff"}, "in the wheel"),
        ({"in_wheel": "yes", "diff": "zwei.diff", "unproven": True}, "unproven"),
        ({"compiled": ["a*.py", "b.py"], "unproven": True}, "unproven"),
    ],
)
def test_a_patch_that_is_in_the_wheel_already_is_not_applied_again(
    tmp_path: Path, tree: Path, row: dict[str, object], state: str
) -> None:
    for word in ("two", "zwei"):
        step(tmp_path, word, "a.py", word)
    (tmp_path / "series.json").write_text(json.dumps([{"name": "p", **row}]))
    before, out = content(tree), tmp_path / "out" / "site"
    ended = overlay.main(tree, tmp_path, out)
    assert (ended, out.exists()) == ((1, False) if state == "broken" else (0, True))
    assert content(tree) == before
    if state != "broken":
        assert list(out.iterdir()) == []
        (record,) = json.loads((tmp_path / "out/site.json").read_text())
        assert (record["name"], record["state"]) == ("p", state)
        sha = hashlib.sha256(b"one\ntwo\nthree\n").hexdigest()
        files = dict.fromkeys(("a.py", "b.py"), sha) if "compiled" in row else {}
        assert record["files"] == (files or ({"a.py": sha} if row.get("diff") else {}))


ADDED = "--- /dev/null\n+++ b/new.py\n@@ -0,0 +1 @@\n+new\n"


@pytest.mark.parametrize(
    ("diff", "state", "detail"),
    [
        (DIFF.format(file="a.py", word="zwei") + ADDED, "unproven", "no proof"),
        (DIFF.format(file="a.py", word="zwei").replace(" three", " 3"), "conflict", "a.py"),
        (DIFF.format(file="gone.py", word="zwei"), "conflict", "gone.py"),
        (DIFF.format(file="b.py", word="two").replace("-two", "-zwei"), "conflict", "upstream has"),
        (None, "conflict", "no variant for this version"),
    ],
)
def test_a_patch_without_a_proof_has_to_apply_cleanly(
    tmp_path: Path, tree: Path, diff: str | None, state: str, detail: str
) -> None:
    before = content(tree)
    path = write(tmp_path / "p.diff", diff) if diff else None
    (done,) = overlay.apply_series(tree, [("p", path, None)])
    assert done.state == state
    assert detail in done.detail
    assert (content(tree) == before) is (state == "conflict")
    assert done.created == (["new.py"] if state == "unproven" else [])


def test_a_builder_records_a_patch_that_is_marked_as_unproven(tmp_path: Path, tree: Path) -> None:
    write(tmp_path / "p.diff", DIFF.format(file="a.py", word="zwei"))
    row = {"name": "vllm/p", "diff": "p.diff", "unproven": True}
    write(tmp_path / "series.json", json.dumps([row]))
    assert overlay.main(tree, tmp_path, tmp_path / "out") == 0
    (record,) = json.loads((tmp_path / "out.json").read_text())
    assert (record["state"], list(record["files"])) == ("unproven", ["a.py"])
    assert "zwei" in (tmp_path / "out/a.py").read_text()


def test_a_proof_imports_the_proofkit_that_is_beside_the_program(
    tmp_path: Path, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(write(tmp_path / "lib/more.py", "NAME = 'zwei'\n").parent))
    script = write(
        tmp_path / "proof.py",
        "import more, proofkit\nproofkit.end(1, f'{more.NAME} of {proofkit.__file__}')\n",
    )
    kit = Path(overlay.__file__).with_name("proofkit") / "__init__.py"
    assert overlay.prove(script, tree) == (overlay.SYMPTOM, f"zwei of {kit}")
    write(tmp_path / "factory/overlay.py", Path(overlay.__file__).read_text())
    for module in kit.parent.glob("*.py"):
        write(tmp_path / "factory/proofkit" / module.name, module.read_text())
    program = "import sys, pathlib, overlay; print(overlay.prove(*map(pathlib.Path, sys.argv[1:])))"
    done = subprocess.run(
        [sys.executable, "-B", "-c", program, str(script), str(tree)],
        cwd=tmp_path / "factory",
        capture_output=True,
        text=True,
        check=True,
    )
    assert str(tmp_path / "factory/proofkit/__init__.py") in done.stdout


def test_a_prover_that_cannot_judge_leaves_the_patch_unknown_but_finds_its_conflicts(
    tmp_path: Path, tree: Path
) -> None:
    def prover(script: Path, _tree: Path) -> tuple[int, str]:
        return overlay.INCONCLUSIVE, f"no {script.stem}"

    fuzzy = DIFF.format(file="b.py", word="zwei").replace("-two", "-2")
    good = step(tmp_path, "good", "a.py", "zwei")
    bad = step(tmp_path, "bad", "b.py", "zwei", diff=fuzzy)
    found = overlay.apply_series(tree, [good, bad, ("none", None, good[2])], prover)
    failed, why = "patch failed: b.py:1", "patch does not apply"
    assert [(one.state, one.detail) for one in found] == [
        ("unknown", "no good"),
        ("conflict", f"error: while searching for:\nerror: {failed}\nerror: b.py: {why}"),
        ("unknown", "no variant for this version; no good"),
    ]


def test_a_tree_inside_another_repository_is_patched_all_the_same(
    tmp_path: Path, tree: Path
) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    diff = "diff --git a/a.py b/a.py\n" + DIFF.format(file="a.py", word="zwei")
    given = step(tmp_path, "p", "a.py", "zwei", diff=diff)
    # git applies a diff without that first line everywhere, and skips this one in silence
    plain = ["git", "apply", "--check", "--verbose", str(given[1])]
    skipped = subprocess.run(plain, cwd=tree, capture_output=True, text=True, check=True)
    assert "Skipped patch" in skipped.stderr
    (done,) = overlay.apply_series(tree, [given])
    assert done.state == "needed"
    assert "zwei" in (tree / "a.py").read_text()


def test_created_files_are_recorded_and_taken_back_with_their_folders(
    tmp_path: Path, tree: Path
) -> None:
    new = "--- /dev/null\n+++ b/deep/er/new.txt\n@@ -0,0 +1 @@\n+hello\n"
    proof = write(
        tmp_path / "new.py",
        PROOF.format(file="deep/er/new.txt", word="hello").replace(
            "read_text()", "read_text() if (pathlib.Path(sys.argv[1]) / 'deep').exists() else ''"
        ),
    )
    good = ("new", write(tmp_path / "new.diff", new), proof)
    bad = step(tmp_path, "bad", "a.py", "x", diff=DIFF.format(file="missing.py", word="x"))
    before = content(tree)
    overlay.apply_series(tree, [good, bad])
    assert content(tree) == before
    assert not (tree / "deep").exists()
    (done,) = overlay.apply_series(tree, [good])
    assert done.created == ["deep/er/new.txt"]


def run_program(
    tmp_path: Path, tree: Path, file: str
) -> tuple[subprocess.CompletedProcess[str], Path]:
    """The program with one patch, which changes ``file``; and where it writes."""
    series = tmp_path / "series"
    write(series / "p" / "x.diff", DIFF.format(file=file, word="zwei"))
    write(series / "p" / "proof.py", PROOF.format(file="a.py", word="zwei"))
    write(
        series / "series.json",
        json.dumps([{"name": "p", "diff": "p/x.diff", "proof": "p/proof.py"}]),
    )
    out = tmp_path / "out" / "site"
    argv = [sys.executable, overlay.__file__, str(tree), str(series), str(out)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return done, out


def test_the_program_writes_an_overlay_of_the_changed_files_only(
    tmp_path: Path, tree: Path
) -> None:
    done, out = run_program(tmp_path, tree, file="a.py")
    assert done.returncode == 0, done.stderr
    assert [p.name for p in out.rglob("*")] == ["a.py"]
    assert json.loads((tmp_path / "out" / "site.json").read_text())[0]["state"] == "needed"


def test_the_program_exits_1_and_writes_nothing_when_a_patch_conflicts(
    tmp_path: Path, tree: Path
) -> None:
    done, out = run_program(tmp_path, tree, file="gone.py")
    assert done.returncode == 1
    assert "conflict" in done.stdout
    assert not out.exists()
