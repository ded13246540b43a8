"""Hunks that do not match: what is shown, where files moved, and what becomes of the rest."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from support.releases import DIFF

from imagefactory.patching import conflicts, merge, partial, port
from imagefactory.patching.merge import MergedFile
from imagefactory.patching.sources import SourceTree

NEW = "--- /dev/null\n+++ b/pkg/new.py\n@@ -0,0 +1,2 @@\n+one\n+two\n"
SECOND = "@@ -20,3 +20,3 @@\n x\n-y\n+Y\n z\n"
PATCHED = ["head", "a", "b", "patched", "d", "e", "f"]


def tree(folder: Path, files: Mapping[str, str]) -> SourceTree:
    """A tree of files with a line for each word."""
    for name, words in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("".join(f"{word}\n" for word in words.split()))
    return SourceTree(project="vllm", version="0.22.1", root=folder, sha256="")


HUNK = """\
    the hunk:
       head
       a
       b
      -c
      +patched
       d
       e
       f
"""
SHOWN = f"""\
pkg/x.py: hunk 1 of 1, written for line 1, does not match
{HUNK}    the file, from line 1:
      ?     1 one
      =     2 a
      =     3 b
      ?     4 C
      =     5 d
      =     6 e
      =     7 f
      ?     8 g
      ?     9 h"""


@pytest.mark.parametrize(
    ("files", "shown"),
    [
        ({"pkg/x.py": "head a b c d e f"}, ""),
        ({"pkg/x.py": "other head a b c d e f g"}, ""),
        ({"pkg/x.py": "one a b C d e f g h i j"}, SHOWN),
        ({"y.py": "a"}, "pkg/x.py: does not exist"),
        (
            {f"{name}/x.py": "" for name in "dcba"},
            "pkg/x.py: does not exist\n"
            + "\n".join(f"    a file with that name: {name}/x.py" for name in "abc"),
        ),
    ],
)
def test_a_hunk_that_does_not_match_is_shown_with_the_lines_it_is_likest(
    tmp_path: Path, files: Mapping[str, str], shown: str
) -> None:
    assert conflicts.explain(DIFF, tree(tmp_path, files).root) == shown


def test_only_the_hunks_that_do_not_match_are_shown_and_files_that_are_in_the_way(
    tmp_path: Path,
) -> None:
    root = tree(tmp_path, {"pkg/x.py": "head a b c d e f", "pkg/new.py": "mine"}).root
    said = conflicts.explain(DIFF + SECOND + NEW, root).splitlines()
    assert said[0] == "pkg/x.py: hunk 2 of 2, written for line 20, does not match"
    assert said[-1] == "pkg/new.py: exists already, but the patch creates it"
    (root / "pkg/new.py").unlink()
    assert conflicts.explain(NEW, root) == ""


@pytest.mark.parametrize(
    ("text", "wanted", "guess", "found"),
    [
        ("a b c d e", "c d", 0, 2),
        ("a b a b", "a b", 0, 0),
        ("a b a b", "a b", 3, 2),
        ("b x", "a b x", 0, 0),  # it would begin before the file does
        ("x a", "a b c", 0, 1),
        ("a b c", "x y", 1, 1),
        ("a b c", "x y", 9, 2),
        ("", "x", 5, 0),
        ("a x a b", "a b", 0, 2),  # most lines count for more than the distance
        ("a x b y a z b", "a b", 4, 4),
    ],
)
def test_the_best_match_has_most_lines_and_is_nearest_to_where_it_was(
    text: str, wanted: str, guess: int, found: int
) -> None:
    assert conflicts.best_match(text.split(), wanted.split(), guess) == found


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"pkg/x.py": "nothing alike"}, {}),
        # lines of the diff: head a b c d e f
        ({"sub/x.py": "head a b"}, {"pkg/x.py": "sub/x.py"}),
        ({"sub/x.py": "head a"}, {}),
        ({"sub/x.py": "head a b", "sub2/x.py": "head a b c"}, {"pkg/x.py": "sub2/x.py"}),
        ({"sub/y.py": "head a b c d"}, {"pkg/x.py": "sub/y.py"}),
        ({"sub/y.py": "head a b c"}, {}),
        ({"sub/y.cu": "head a b c d e f"}, {}),
        ({"sub/x.py": "head", "sub/y.py": "head a b c d e f"}, {"pkg/x.py": "sub/y.py"}),
    ],
)
def test_a_file_moved_to_where_most_of_its_lines_are(
    tmp_path: Path, files: Mapping[str, str], found: Mapping[str, str]
) -> None:
    assert conflicts.moved(DIFF + NEW, tree(tmp_path, files).root) == found


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"pkg/x.py": "other"}, "pkg/x.py"),
        # of lines in either, 0.3 with the same name and 0.6 with another are enough
        ({"sub/x.py": "a b c 1 2 3"}, "sub/x.py"),
        ({"sub/x.py": "a 1 2"}, None),
        ({"sub/x.py": "a b c 1 2 3", "sub2/x.py": "a b c d"}, "sub2/x.py"),
        ({"sub/y.py": "a b c"}, "sub/y.py"),
        ({"sub/y.py": "a b"}, None),
        ({"sub/y.cu": "a b c d"}, None),
    ],
)
def test_a_merge_finds_a_moved_file_by_the_lines_that_both_have(
    tmp_path: Path, files: Mapping[str, str], found: str | None
) -> None:
    root = tree(tmp_path, files).root
    assert merge.locate("pkg/x.py", "a\nb\n\n c\nd\n", root) == found


@pytest.mark.parametrize(
    ("diff", "words", "count"),
    [
        (DIFF, "head a b c d e f", 1),
        (DIFF, "1 2 3 head a b c d e f", 1),
        (DIFF, "head a b X d e f", 0),
        (DIFF + SECOND, "head a b X d e f x y z", 1),
        (DIFF + SECOND, "head a b c d e f x y z", 2),
        (NEW + DIFF, "head a b c d e f", 1),
    ],
)
def test_hunks_that_match_somewhere_fit(tmp_path: Path, diff: str, words: str, count: int) -> None:
    found = tree(tmp_path, {"pkg/x.py": words})
    assert partial.fitting([diff], found) == count
    assert partial.fitting([diff, diff], found) == 2 * count


def merged(folder: Path, words: str, *diffs: str) -> tuple[list[str], int]:
    (file,) = partial.merged(diffs, tree(folder, {"pkg/x.py": words}))
    assert (file.old, file.new) == ("pkg/x.py", "pkg/x.py")
    return (file.text or b"").decode().split("\n")[:-1], file.conflicts


def test_hunks_that_fit_are_applied_nearest_to_their_line(tmp_path: Path) -> None:
    assert merged(tmp_path, "head a b c d e f g", DIFF) == ([*PATCHED, "g"], 0)
    twice = "x y z x y z"
    hunk = "--- a/pkg/x.py\n+++ b/pkg/x.py\n@@ -{0},3 +{0},3 @@\n x\n-y\n+Y\n z\n"
    assert merged(tmp_path, twice, hunk.format(1)) == (["x", "Y", "z", "x", "y", "z"], 0)
    assert merged(tmp_path, twice, hunk.format(4)) == (["x", "y", "z", "x", "Y", "z"], 0)
    both = hunk.format(4)
    assert merged(tmp_path, twice, both, both) == (["x", "Y", "z", "x", "Y", "z"], 0)


def test_a_hunk_that_does_not_fit_is_marked_where_it_is_likest(tmp_path: Path) -> None:
    conflict = [
        *("<<<<<<< vllm 0.22.1", *["head", "a", "b", "X", "d", "e", "f"]),
        *("||||||| the diff expects", *["head", "a", "b", "c", "d", "e", "f"]),
        *("=======", *PATCHED, ">>>>>>> patch"),
    ]
    words = "1 head a b X d e f x y z"
    assert merged(tmp_path, words, DIFF + SECOND) == (["1", *conflict, "x", "Y", "z"], 1)
    text, count = merged(tmp_path, "1", DIFF + SECOND, THIRD)
    assert (count, text.count("=======")) == (3, 3)


THIRD = "--- a/pkg/x.py\n+++ b/pkg/x.py\n@@ -30,2 +30,2 @@\n p\n-q\n+Q\n"


def test_a_file_that_is_created_is_all_of_its_lines(tmp_path: Path) -> None:
    (file,) = partial.merged([NEW], tree(tmp_path, {}))
    wanted = MergedFile(old="pkg/new.py", new="pkg/new.py", text=b"one\ntwo\n", conflicts=0)
    assert file == wanted


def test_markers_and_changed_files_are_found_and_hidden_ones_are_not(tmp_path: Path) -> None:
    words = {"a.py": "one", "b.py": "two", "same.py": "x", ".hid/c.py": "c"}
    old = tree(tmp_path / "old", {**words, "gone.py": "g"}).root
    new = tree(tmp_path / "new", {**words, "a.py": "1 2", ".hid/c.py": "d", "new.py": "n"}).root
    assert merge.changed_files(old, new) == ["a.py", "gone.py", "new.py"]
    (new / "b.py").write_text("<<<<<<< x\n||||||| y\n=======\n>>>>>>> z\n <<<<<<< x\n<<<<<<<\n")
    found = list(merge.leftover_markers(new, ["a.py", "b.py", "gone.py"]))
    assert found == [f"{new / 'b.py'}:{line}" for line in (1, 2, 4)]


def test_of_each_side_of_a_conflict_a_dozen_lines_are_shown() -> None:
    ours, theirs = ([f"{side}{n}" for n in range(count)] for side, count in (("o", 14), ("p", 12)))
    one = ["<<<<<<< new", *ours, "||||||| old", "b", "=======", *theirs, ">>>>>>> patch"]
    text = "\n".join(["x", *one, "after", *one, "end"]).encode()
    file = MergedFile(old="old.py", new="new.py", text=text, conflicts=2)
    cut = [
        "<<<<<<< new",
        *ours[:12],
        "...",
        "||||||| old",
        "b",
        "=======",
        *theirs,
        ">>>>>>> patch",
    ]
    shown = list(port.conflict_lines([file, MergedFile(old="o", new="o", text=text, conflicts=0)]))
    heads = [f"new.py:{n}: upstream and the patch changed the same lines" for n in (2, 34)]
    body = [f"    {line}" for line in cut]
    assert shown == [heads[0], *body, heads[1], *body]
