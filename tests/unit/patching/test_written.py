"""Drafts, merges with conflicts and stored results of proofs: what is written and read back."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from imagefactory.patching import authoring, partial
from imagefactory.patching.reads import Reads
from imagefactory.patching.sources import SourceTree


@pytest.mark.parametrize(
    ("names", "stage"),
    [
        (["a.py"], "installed"),
        (["a.py", "b.pyi"], "installed"),
        (["a.py", "b.cu"], "source"),
        (["CMakeLists.txt"], "source"),
        (["flashinfer/data/x.cuh"], "installed"),
    ],
)
def test_a_draft_of_python_alone_is_for_installed_files(
    tmp_path: Path, names: list[str], stage: str
) -> None:
    folder = tmp_path / "vllm" / "new"
    text = "".join(f"--- a/{n}\n+++ b/{n}\n@@ -1 +1 @@\n-a\n+b\n" for n in names)
    authoring.write_draft(folder, "0.34.0", text, authoring.Words())
    data = yaml.safe_load((folder / "patch.yaml").read_text())
    assert (data["stage"], data["draft"]) == (stage, True)
    assert data["variants"] == [{"versions": ">=0.34,<0.35", "diff": "0.34.diff"}]
    assert (folder / "0.34.diff").read_text() == text


def tree(root: Path, text: str) -> SourceTree:
    (root / "x.py").write_text(text)
    return SourceTree(project="vllm", version="0.34.0", root=root, sha256="0" * 64)


def test_a_hunk_without_a_match_is_shown_between_markers_and_others_are_applied(
    tmp_path: Path,
) -> None:
    upstream = tree(tmp_path, "a\nb\nc\nother\nz\n")
    diff = "--- a/x.py\n+++ b/x.py\n@@ -1,2 +1,2 @@\n a\n-b\n+B\n@@ -4,2 +4,2 @@\n-d\n+D\n z\n"
    (found,) = partial.merged([diff], upstream)
    assert found.conflicts == 1
    assert (found.text or b"").decode().splitlines() == [
        *("a", "B", "c", "<<<<<<< vllm 0.34.0", "other", "z"),
        *("||||||| the diff expects", "d", "z", "=======", "D", "z", ">>>>>>> patch"),
    ]


def test_a_stored_result_holds_for_a_tree_in_which_the_same_was_read(tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    for root in (first, second):
        root.mkdir()
        (root / "a.py").write_text("a")
        (root / "unread.py").write_text(root.name)
    folder = tmp_path / "kept"
    Reads(folder).add("key", first, [("a.py", False), ("gone.py", False)], {"state": "needed"})
    assert Reads(folder).find("key", second) == {"state": "needed"}
    assert Reads(folder, fresh=True).find("key", second) is None
    assert Reads(folder).find("other", second) is None
    (second / "gone.py").write_text("")
    assert Reads(folder).find("key", second) is None
    (second / "gone.py").unlink()
    (second / "a.py").write_text("b")
    assert Reads(folder).find("key", second) is None
    for text in ("[", "{}", "[[1], {}]", "[[[1, 2]], {}]", "5"):
        (folder / "key" / "0.json").write_text(text)
        assert Reads(folder).find("key", first) == {"state": "needed"}
