"""Merging a file, and the work trees in which people finish what git cannot."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.machine import settings
from support.patches import DIFF
from unidiff.patch import PatchSet

from imagefactory.errors import InputError
from imagefactory.patching import (
    merge,
    rebase,
    worktree,
)
from imagefactory.patching.authoring import Words
from imagefactory.patching.measure import Measured
from imagefactory.patching.merge import MergedFile
from imagefactory.patching.patch import IMPORTED, State
from imagefactory.patching.sources import SourceTree
from imagefactory.system import shell

ROW = {"project": "vllm", "patch": "vllm/one", "version": "1", "reason": "r", "evidence": "e"}


def tree_of(root: Path, version: str = "0.22.1") -> SourceTree:
    return SourceTree(project="vllm", version=version, root=root, sha256="ab" * 32)


def measured(state: State = State.NEEDED, **more: str) -> Measured:
    return Measured(**{**ROW, "state": state, **more})  # type: ignore[arg-type]


class Git:
    """Instead of git: what it was asked, and what it answers."""

    def __init__(self, out: str = "", code: int = 0) -> None:
        self.out, self.code, self.err = out, code, ""
        self.ok = code == 0
        self.asked: list[tuple[list[str], dict[str, Any]]] = []

    def __call__(self, argv: list[str], **more: Any) -> Git:
        self.asked.append((argv, more))
        return self


def test_git_merges_with_the_names_of_the_releases_and_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git = Git(code=2)
    monkeypatch.setattr(shell, "run", git)
    theirs = tmp_path / "theirs"
    assert merge._merge_file(b"ours", b"base", theirs, tmp_path, ("1", "2")) == (b"ours", 2)
    ((argv, more),) = git.asked
    names = ["-L", "2", "-L", "1", "-L", "patch"]
    assert argv[:4] == ["git", "merge-file", "--diff3", "--quiet"]
    assert argv[4:] == [*names, *map(str, (tmp_path / "ours", tmp_path / "base", theirs))]
    assert more == {"quiet": True}
    assert (tmp_path / "base").read_bytes() == b"base"


def test_git_s_diff_loses_ids_and_gets_the_usual_prefixes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git = Git("diff --git a/x.py a/x.py\nindex 1..2\n--- a/x.py\ndiff --git b/n.py b/n.py\n x\n")
    monkeypatch.setattr(shell, "run", git)
    for side in ("old", "new"):
        (tmp_path / side / "pkg").mkdir(parents=True)
        (tmp_path / side / "pkg/x.py").write_text(side)
    text = merge.diff_of(tmp_path / "old", tmp_path / "new", ["pkg/x.py", "gone.py"])
    assert text == "diff --git a/x.py b/x.py\n--- a/x.py\ndiff --git a/n.py b/n.py\n x\n"
    ((argv, more),) = git.asked
    options = "--no-index --no-color --no-renames --no-prefix --no-ext-diff"
    assert argv == ["git", "diff", *options.split(), "a", "b"]
    assert more["quiet"] is True


def folder(root: Path, **files: bytes) -> Path:
    for name, data in files.items():
        path = root / name.replace("_", "/").replace("PY", ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    root.mkdir(exist_ok=True)
    return root


@pytest.mark.parametrize(
    ("old", "patched", "new", "found"),
    [
        # changed: merged where it is
        (b"a\n", b"b\n", b"c\n", (b"c\n|a\n", 3, b"a\n", b"b\n")),
        # created: as it is, or merged with what upstream has there
        (None, b"b\n", None, (b"b\n", 0, b"", b"")),
        (None, b"b\n", b"c\n", (b"c\n|", 3, b"", b"b\n")),
        # removed: gone if upstream left it alone, else a conflict
        (b"a\n", None, b"a\n", (None, 0, b"", b"")),
        (b"a\n", None, b"c\n", (b"c\n", 1, b"", b"")),
        # upstream removed it
        (b"a\n", b"b\n", None, (b"<<<<<<< 2: no such file\n=======\nb\n>>>>>>> patch\n", *(1, b"", b""))),
        (b"a\n", None, None, (b"<<<<<<< 2: no such file\n=======\n>>>>>>> patch\n", *(1, b"", b""))),
    ],
)  # fmt: skip
def test_a_file_is_merged_by_what_each_side_did_to_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    old: bytes | None,
    patched: bytes | None,
    new: bytes | None,
    found: tuple[bytes | None, int, bytes, bytes],
) -> None:
    monkeypatch.setattr(merge, "_merge_file", lambda ours, base, *_: (ours + b"|" + base, 3))
    sides = {"old": old, "patched": patched, "new": new}
    old_root, patched_root, new_root = (
        folder(tmp_path / side, **({"xPY": data} if data is not None else {}))
        for side, data in sides.items()
    )
    (file,) = PatchSet(DIFF)
    made = merge._merged(file, old_root, patched_root, new_root, tmp_path, ("1", "2"))
    assert (made.old, made.new) == ("x.py", "x.py")
    assert (made.text, made.conflicts, made.base, made.patched) == found


@pytest.mark.parametrize(
    ("shared", "name", "is_found"),
    [(3, "x.py", True), (2, "x.py", False), (6, "y.py", True), (5, "y.py", False), (6, "y.cu", False)],
)  # fmt: skip
def test_a_file_has_moved_to_where_enough_of_its_lines_are(
    tmp_path: Path, shared: int, name: str, is_found: bool
) -> None:
    lines = [f"line {number}" for number in range(10)]
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / name).write_text("\n".join([*lines[:shared], ""]))
    (tmp_path / "sub/less.py").write_text("line 0\n")
    found = merge.locate("pkg/x.py", "\n".join(lines), tmp_path)
    assert found == (f"sub/{name}" if is_found else None)
    assert merge.locate("sub/less.py", "", tmp_path) == "sub/less.py"


def test_only_markers_of_a_conflict_are_left_over(tmp_path: Path) -> None:
    text = "a\n<<<<<<< x\n=======\n||||||| x\n>>>>>>> x\n <<<<<<< x\n<<<<<<<\n"
    (tmp_path / "x.py").write_text(text)
    found = list(merge.leftover_markers(tmp_path, ["x.py", "gone.py"]))
    assert found == [f"{tmp_path / 'x.py'}:{line}" for line in (2, 4, 5)]


def test_merged_files_are_written_and_those_without_a_text_removed(tmp_path: Path) -> None:
    (tmp_path / "gone.py").touch()
    files = [
        MergedFile(old="x", new="new/x.py", text=b"x", conflicts=0),
        MergedFile(old="gone.py", new="gone.py", text=None, conflicts=0),
        MergedFile(old="never.py", new="never.py", text=None, conflicts=0),
    ]
    rebase.write_merged(files, tmp_path)
    assert [str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*.py")] == ["new/x.py"]


def test_a_file_that_moved_is_one_whose_path_is_another() -> None:
    files = tuple(
        MergedFile(old=old, new=new, text=b"", conflicts=0) for old, new in (("a", "b"), ("c", "c"))
    )
    made = rebase.Rebased(
        outcome=rebase.Outcome.MERGED, text="", files=files, seen=measured(), note=""
    )
    assert made.moved == {"a": "b"}


def test_a_work_tree_is_a_copy_without_hidden_files_and_with_what_is_known(tmp_path: Path) -> None:
    source = folder(tmp_path / "src", pkg_xPY=b"x")
    (source / ".source.json").touch()
    own, files = settings(tmp_path), [MergedFile(old="n", new="n.py", text=b"n", conflicts=0)]
    words = Words(summary="s", address="https://h", imported=b"diff")
    stale = own.state / "ports/.vllm-one-0.22.1.part/tree"
    stale.mkdir(parents=True)
    (stale / "stale.py").touch()
    tree = tree_of(source)
    made = worktree.begin(own, "vllm/one", tree, kind="new", files=files, words=words)
    assert made.folder == own.state / "ports/vllm-one-0.22.1"
    names = {str(path.relative_to(made.folder)) for path in made.folder.rglob("*")}
    assert names == {"tree", "tree/pkg", "tree/pkg/x.py", "tree/n.py", "port.json", IMPORTED}
    assert (made.folder / IMPORTED).read_bytes() == b"diff"
    kept = {"summary": "s", "notes": "", "origin": "", "unproven": False}
    assert json.loads((made.folder / "port.json").read_text()) == {
        "patch": "vllm/one",
        "version": "0.22.1",
        "kind": "new",
        "words": {**kept, "address": "https://h", "sha256": ""},
    }
    assert worktree.unfinished(own) == [made]
    (made.folder / IMPORTED).unlink()
    assert worktree.unfinished(own) == [replace(made, words=replace(words, imported=b""))]
    with pytest.raises(InputError) as caught:
        worktree.begin(own, "vllm/one", tree, kind="new")
    (problem,) = caught.value.problems
    assert (problem.code, problem.where) == ("port-open", str(made.folder))
    worktree.remove(made)
    assert worktree.unfinished(own) == []


@pytest.mark.parametrize(
    ("markers", "text", "code"),
    [([], "a diff", ""), ([], "", "port-unchanged"), (["x.py:1", "x.py:9"], "a diff", "port-markers")],
)  # fmt: skip
def test_a_work_tree_is_finished_if_it_has_changes_and_no_markers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, markers: list[str], text: str, code: str
) -> None:
    work = worktree.WorkTree(folder=tmp_path, patch="vllm/one", version="1", kind="new")
    seen: list[object] = []

    def answering(answer: object) -> Callable[..., object]:
        def asked(*given: object) -> object:
            seen.append(given)
            return answer

        return asked

    monkeypatch.setattr(worktree, "changed_files", answering(["x.py"]))
    monkeypatch.setattr(worktree, "leftover_markers", answering(markers))
    monkeypatch.setattr(worktree, "diff_of", answering(text))
    if not code:
        assert worktree.diff_against(work, tree_of(tmp_path / "src")) == text
        pair = tmp_path / "src", tmp_path / "tree"
        assert seen == [pair, (pair[1], ["x.py"]), (*pair, ["x.py"])]
        return
    with pytest.raises(InputError) as caught:
        worktree.diff_against(work, tree_of(tmp_path / "src"))
    places = markers or [str(tmp_path / "tree")]
    assert [(one.code, one.where) for one in caught.value.problems] == [
        (code, place) for place in places
    ]
