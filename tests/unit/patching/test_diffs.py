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


def test_a_plain_diff_is_accepted(tmp_path: Path) -> None:
    assert problems_of(tmp_path, GOOD) == []


@pytest.mark.parametrize(
    ("data", "code", "where"),
    [
        ("", "diff-empty", "p.diff:1"),
        ("no diff\n", "diff-empty", "p.diff:1"),
        (GOOD.replace("\n", "\r\n"), "diff-crlf", "p.diff:1"),
        (GOOD.encode() + b"\xff\n", "diff-encoding", "p.diff:7"),
        (GOOD.replace("/x.py", "/../x.py"), "diff-escape", "p.diff:1"),
        (GOOD.replace("a/x.py", "/etc/x.py"), "diff-escape", "p.diff:1"),
        (GOOD.replace("/x.py", "/.git/config"), "diff-escape", "p.diff:1"),
        ("new file mode 120000\n" + GOOD, "diff-symlink", "p.diff:1"),
        ("new file mode 160000\n" + GOOD, "diff-submodule", "p.diff:1"),
        ("index 12..34 160000\n" + GOOD, "diff-submodule", "p.diff:1"),
        ("old mode 100644\nnew mode 104755\n" + GOOD, "diff-mode", "p.diff:2"),
        ("rename from x\nrename to ../../x\n" + GOOD, "diff-escape", "p.diff:2"),
        ("copy from /etc/passwd\n" + GOOD, "diff-escape", "p.diff:1"),
        (GOOD.replace("b/x.py", "b/\u202eyp.x"), "diff-escape", "p.diff:2"),
        (GOOD.replace("zwei", "zw\0ei"), "diff-binary", "p.diff:6"),
        (GOOD.replace("-1,2", f"-{'9' * 5000},2"), "diff-malformed", "p.diff:3"),
        (GOOD + "GIT binary patch\n", "diff-binary", "p.diff:7"),
        (GOOD + GOOD, "diff-twice", "p.diff:8"),
        (GOOD.replace("@@ -1,2 +1,2 @@", "@@ -1,9 +1,2 @@"), "diff-malformed", "p.diff:6"),
        (GOOD.replace("@@ -1,2 +1,2 @@", "@@ -1 +1 @@"), "diff-malformed", "p.diff:5"),
        (GOOD.replace("@@ -1,2 +1,2 @@", "@@ one @@"), "diff-malformed", "p.diff:3"),
    ],
)
def test_an_unsafe_or_malformed_diff_is_rejected_with_the_line(
    tmp_path: Path, data: str, code: str, where: str
) -> None:
    assert (code, where) in problems_of(tmp_path, data)


def test_a_form_feed_ends_no_line(tmp_path: Path) -> None:
    assert problems_of(tmp_path, GOOD.replace("zwei", "zw\x0c-ei")) == []


def test_a_program_may_be_made_executable(tmp_path: Path) -> None:
    assert problems_of(tmp_path, "old mode 100644\nnew mode 100755\n" + GOOD) == []


def test_a_removed_line_that_looks_like_a_header_is_not_one(tmp_path: Path) -> None:
    assert (
        problems_of(tmp_path, "--- a/x.py\n+++ b/x.py\n@@ -1,2 +1,1 @@\n one\n--- a/../x\n") == []
    )
