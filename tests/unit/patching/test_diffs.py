"""Which diffs are rejected before anything is applied."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagefactory.patching import diffs

GOOD = "--- a/x.py\n+++ b/x.py\n@@ -1,2 +1,2 @@\n one\n-two\n+zwei\n"


def problems_of(folder: Path, data: str | bytes) -> list[tuple[str, str | None]]:
    path = folder / "p.diff"
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return [(problem.code, problem.where) for problem in diffs.problems(path, "p.diff")]


GIT = "diff --git a/x.py b/x.py\n"
SECOND = "@@ -9,2 +9,2 @@\n one\n-two\n+zwei\n"
NEW = "--- /dev/null\n+++ b/x.py\n@@ -0,0 +1,2 @@\n+one\n+two\n"
GONE = "--- a/x.py\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-one\n-two\n"


@pytest.mark.parametrize(
    "data",
    [
        GOOD,
        GOOD + GOOD.replace("x.py", "y.py"),
        GOOD + SECOND,
        NEW,
        GONE,
        "--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-one\n+two\n",
        # an empty line of context without its space, and what a mail ends with
        GOOD.replace(" one\n", "\n"),
        GOOD + "-- \n2.43.0\n",
        GOOD + "\\ No newline at end of file\n",
        GOOD.replace("-two\n", "-two\n\\ No newline at end of file\n"),
        # a program may be made executable
        "old mode 100644\nnew mode 100755\n" + GOOD,
        "index 12..34 100644\n" + GOOD,
        # a form feed ends no line; a removed line that looks like a header is none
        GOOD.replace("zwei", "zw\x0c-ei"),
        "--- a/x.py\n+++ b/x.py\n@@ -1,2 +1,1 @@\n one\n--- a/../x\n",
    ],
)
def test_a_diff_as_git_writes_it_is_accepted(tmp_path: Path, data: str) -> None:
    assert problems_of(tmp_path, data) == []


@pytest.mark.parametrize(
    ("data", "code", "lines"),
    [
        ("", "empty", [1]),
        ("  \n\n", "empty", [1]),
        ("no diff\n", "empty", [1]),
        (GIT + "old mode 100644\nnew mode 100755\n", "empty", [1]),
        (GOOD.replace("\n", "\r\n"), "crlf", [1]),
        (GOOD.replace("one\n", "one\r\n"), "crlf", [4]),
        (GOOD.encode() + b"\xff\n", "encoding", [7]),
        (GOOD.encode().replace(b"one", b"\xff"), "encoding", [4]),
        (GOOD.replace("zwei", "zw\0ei"), "binary", [6]),
        (GIT + "Binary files a/x.py and b/x.py differ\n" + GOOD, "binary", [2]),
        (GIT + "GIT binary patch\n" + GOOD, "binary", [2]),
        # outside the tree, in git's folder, or without the prefixes
        (GOOD.replace("/x.py", "/../x.py"), "escape", [1, 2]),
        (GOOD.replace("/x.py", "/.git/config"), "escape", [1, 2]),
        (GOOD.replace("/x.py", "/sub/.git/x"), "escape", [1, 2]),
        (GOOD.replace("a/x.py", "/etc/x.py"), "escape", [1]),
        (GOOD.replace("a/x.py", "a//etc/x.py"), "escape", [1]),
        (GOOD.replace("a/x.py", "c/x.py"), "escape", [1]),
        (GOOD.replace("a/x.py", "a/"), "escape", [1]),
        (GOOD.replace("b/x.py", "x.py"), "escape", [2]),
        (GOOD.replace("b/x.py", "b/\u202eyp.x"), "escape", [2]),
        ("rename from x\nrename to ../../x\n" + GOOD, "escape", [2]),
        ("copy from /etc/passwd\n" + GOOD, "escape", [1]),
        (GIT + "new file mode 120000\n" + NEW, "symlink", [2]),
        (GIT + "deleted file mode 120000\n" + GONE, "symlink", [2]),
        (GIT + "new file mode 160000\n" + NEW, "submodule", [2]),
        ("index 12..34 160000\n" + GOOD, "submodule", [1]),
        ("old mode 100644\nnew mode 104755\n" + GOOD, "mode", [2]),
        (GOOD + GOOD, "twice", [8]),
        (GOOD + GOOD + GOOD, "twice", [8, 14]),
        # lines after the end of a hunk, which git would drop
        (GOOD + "+more\n", "malformed", [7]),
        (GOOD + "-more\n", "malformed", [7]),
        (GOOD + " more\n", "malformed", [7]),
        (GOOD + SECOND + "+more\n", "malformed", [11]),
        (GOOD.replace("@@ -1,2 +1,2 @@", "@@ -1 +1 @@"), "malformed", [5]),
        # hunks that lack lines
        (GOOD.replace("-1,2", "-1,9"), "malformed", [6]),
        (GOOD.replace("+1,2", "+1,3"), "malformed", [6]),
        (GOOD.replace("-two", "*two"), "malformed", [5]),
        (GOOD.replace("@@ -1,2 +1,2 @@", "@@ one @@"), "malformed", [3]),
        (GOOD + "@@ one @@\n", "malformed", [7]),
        (GOOD.replace("-1,2", f"-{'9' * 5000},2"), "malformed", [3]),
    ],
)
def test_an_unsafe_or_malformed_diff_is_rejected_with_the_line(
    tmp_path: Path, data: str | bytes, code: str, lines: list[int]
) -> None:
    found = problems_of(tmp_path, data)
    assert found == [(f"diff-{code}", f"p.diff:{line}") for line in lines]


def test_a_diff_that_is_too_large_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diffs, "LARGEST", len(GOOD))
    assert problems_of(tmp_path, GOOD) == []
    assert problems_of(tmp_path, GOOD + "\n") == [("diff-unreadable", "p.diff:1")]
