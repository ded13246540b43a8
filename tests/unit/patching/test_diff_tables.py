"""What is read out of a diff: each line of it changes the answer."""

from __future__ import annotations

from typing import Any

import pytest

from imagefactory.patching import diffs, importing, incoming
from imagefactory.patching.authoring import Words
from imagefactory.patching.fetched import Fetched
from imagefactory.patching.importing import _Given, _Kept
from imagefactory.patching.incoming import Message, Part
from imagefactory.patching.patch import Source

HEAD = "--- a/x.py\n+++ b/x.py\n"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", 0),
        ("hello\n", 0),
        (HEAD, 0),
        (HEAD + "@@ -1 +1 @@\n-a\n+b\n", 0),
        (HEAD + "@@ -1,2 +1,2 @@\n one\n-two\n+zwei\n", 0),
        (HEAD + "@@ -1,2 +1,2 @@\n one\n-two\n\\ No newline\n+zwei\n", 0),
        (HEAD + "@@ -1,3 +1,3 @@\n one\n\n-two\n+zwei\nafter\n", 0),
        (HEAD + "@@ -1,2 +1,2 @@\n one\nhello\n", 5),
        (HEAD + "@@ -1,2 +1,2 @@\n one\n+zwei\n*two\n", 6),
        (HEAD + "@@ -1,2 +1,2 @@\n one\n-two\ndiff --git a/y b/y\n", 6),
        (HEAD + "@@ -1,2 +1,2 @@\nhello\n", 4),
        # what is open at the end
        (HEAD + "@@ -1,2 +1,2 @@\n one\n-two\n", 5),
        (HEAD + "@@ -1,2 +1,2 @@\n one\n+zwei\n", 5),
        (HEAD + "@@ -1 +1 @@\n", 3),
    ],
)
def test_a_hunk_is_cut_at_the_first_line_that_cannot_be_of_it(text: str, line: int) -> None:
    assert diffs.cut_hunk(text) == line


@pytest.mark.parametrize(
    ("text", "outside"),
    [
        (HEAD + "@@ -1 +1 @@\n-a\n+b\nafter\n", [1, 2, 6]),
        ("@@ -1,2 +0,0 @@\n--- a\n-- b\nafter\n", [4]),
        ("@@ -0,0 +1,2 @@\n+a\n\\ No newline\n+b\nafter\n", [5]),
        ("@@ -1,2 +1,2 @@\n a\n\nafter\n", [4]),
        ("@@ -1 +1,3 @@\n a\n+b\n+c\nafter\n", [5]),
        ("@@ -1 +1,3 @@\n@@ -1 +1 @@\nx\n", []),
    ],
)
def test_lines_are_outside_hunks_once_their_header_s_counts_are_reached(
    text: str, outside: list[int]
) -> None:
    assert [number for number, _ in diffs.headers(text)] == outside


@pytest.mark.parametrize(
    ("lines", "starts"),
    [
        (["diff --git a/x b/x", "--- a/x", "+++ b/x"], [1]),
        (["--- a/x", "+++ b/x"], [1]),
        (["+++ b/x", "--- a/x"], []),
        (["--- a/x", "--- a/y", "+++ b/y"], [2]),
        (["rename from x", "rename to y"], []),
        # a header of git without hunks, then a plain diff: of another file, or of its own
        (["diff --git a/x b/x", "old mode 1", "--- a/y", "+++ b/y"], [1, 3]),
        (["diff --git a/x b/x", "old mode 1", "--- a/x", "+++ b/x", "--- a/x", "+++ b/x"], [1, 5]),
        (["diff --git a/x b/x", "--- a/x", "+++ /dev/null"], [1]),
        (["diff --git a/x b/x", "--- /dev/null", "+++ b/x"], [1]),
        # of a renamed file, the header of git names two
        (["diff --git a/x b/y", "rename from x", "rename to y", "--- a/x", "+++ b/y"], [1]),
        (["diff --git a/x b/y", "rename from x", "rename to y", "--- a/z", "+++ b/z"], [1, 4]),
        (["diff --git a/x b/y", "copy from x", "copy to y", "--- a/z", "+++ b/z"], [1, 4]),
        (["diff --git a/x b/y", "--- a/z", "+++ b/z"], [1]),
        # in the text of a mail
        (["rename from x", "--- a/x", "+++ b/x"], [2]),
        (["--- a/x", "hello"], []),
    ],
)
def test_a_part_begins_at_a_header_of_git_or_at_a_plain_diff_of_another_file(
    lines: list[str], starts: list[int]
) -> None:
    assert list(incoming._starts(dict(enumerate(lines, start=1)))) == starts


@pytest.mark.parametrize(
    ("path", "bare", "name"),
    [
        ("/dev/null", False, ""),
        ("a/vllm/x.py", False, "vllm/x.py"),
        ("b/vllm/x.py", False, "vllm/x.py"),
        ("c/vllm/x.py", False, "c/vllm/x.py"),
        ("a/vllm/x.py", True, "a/vllm/x.py"),
        ("vllm/x.py", True, "vllm/x.py"),
        ("x.py", False, "x.py"),
        ("/usr/lib/python3/dist-packages/vllm/x.py", False, "vllm/x.py"),
        ("a/opt/site-packages/vllm/x.py", False, "vllm/x.py"),
        ("a/csrc/x.cu", False, "moved/csrc/x.cu"),
        ("a/csrc", False, "moved/csrc"),
        ("a/vllm/csrc/x.cu", False, "vllm/csrc/x.cu"),
    ],
)
def test_a_path_loses_its_prefix_and_goes_where_a_wheel_has_it(
    path: str, bare: bool, name: str
) -> None:
    assert incoming._normal(path, {"csrc": "moved/csrc"}, bare=bare) == name


def part(text: str, **more: Any) -> Part:
    (found,) = incoming.messages(text.encode(), "x.diff", **more)
    (one,) = found.parts
    return one


HUNK = "@@ -1 +1 @@\n-a\n+b\n"
GIT_X = "diff --git a/x.py b/x.py\n"
GIT = "diff --git a/vllm/x.py b/vllm/x.py\n"


@pytest.mark.parametrize(
    ("text", "old", "new", "renamed", "written"),
    [
        (HEAD + HUNK, "x.py", "x.py", False, GIT_X + HEAD + HUNK),
        (
            "--- /dev/null\n+++ b/x.py\n@@ -0,0 +1 @@\n+b\n",
            *("", "x.py", False),
            GIT_X + "new file mode 100644\n--- /dev/null\n+++ b/x.py\n@@ -0,0 +1 @@\n+b\n",
        ),
        (
            "--- a/x.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n",
            *("x.py", "", False),
            GIT_X + "deleted file mode 100644\n--- a/x.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n",
        ),
        (
            "diff --git a/x.py b/y.py\nsimilarity index 90%\nrename from x.py\nrename to y.py\n",
            *("x.py", "y.py", True),
            "diff --git a/x.py b/y.py\nrename from x.py\nrename to y.py\n",
        ),
        (
            "diff --git a/x.py b/y.py\ncopy from x.py\ncopy to y.py\n--- a/x.py\n+++ b/y.py\n"
            + HUNK,
            *("x.py", "y.py", True),
            "diff --git a/x.py b/y.py\ncopy from x.py\ncopy to y.py\n--- a/x.py\n+++ b/y.py\n"
            + HUNK,
        ),
        # two names without a rename, as diff writes those of a backup
        (
            "--- a/x.py.orig\n+++ b/x.py\n" + HUNK,
            *("x.py.orig", "x.py", False),
            GIT_X + HEAD + HUNK,
        ),
        (GIT + "old mode 100644\nnew mode 100755\n", *["vllm/x.py"] * 2, False, GIT),
        (HEAD + HUNK + "\\ No newline at end of file\n", "x.py", "x.py", False,
         GIT_X + HEAD + HUNK + "\\ No newline at end of file\n"),
    ],
)  # fmt: skip
def test_a_part_is_written_as_git_writes_it(
    text: str, old: str, new: str, renamed: bool, written: str
) -> None:
    found = part(text)
    assert (found.old, found.new, found.renamed) == (old, new, renamed)
    assert found.name == (new or old)
    assert found.text == written
    assert found.changes is ("@@" in text or renamed)


def test_a_part_knows_the_lines_at_which_it_begins_and_is_named() -> None:
    mail = "hello\n" + GIT + "index 1..2\n"
    plain = part("hello\n\n" + HEAD + HUNK)
    assert (plain.first, plain.named) == (3, 3)
    git = part(mail + HEAD.replace("x.py", "vllm/x.py") + HUNK)
    assert (git.first, git.named) == (2, 4)
    nameless = part(mail + "old mode 100644\nnew mode 100755\n")
    assert (nameless.first, nameless.named) == (2, 2)


def test_a_name_is_shown_without_what_a_terminal_obeys() -> None:
    found = part((HEAD + HUNK).replace("x.py", "\x1b[2Jä\u202e.py"))
    assert found.shown_name == "?[2Jä?.py"


@pytest.mark.parametrize("ending", ["", "\r"])
def test_line_endings_of_a_header_are_kept_for_the_error_about_them(ending: str) -> None:
    text = f"--- vllm/x.py{ending}\n+++ vllm/x.py{ending}\n{HUNK}"
    assert part(text).lines[:2] == (f"--- a/vllm/x.py{ending}", f"+++ b/vllm/x.py{ending}")


def test_the_first_of_two_names_for_one_side_counts() -> None:
    found = part("diff --git a/x.py b/y.py\nrename from x.py\nrename from z.py\nrename to y.py\n")
    assert (found.old, found.new) == ("x.py", "y.py")


@pytest.mark.parametrize("first", [0, 3])
def test_a_problem_has_the_line_of_the_whole_text(first: int) -> None:
    good, bad = HEAD + HUNK, "--- a/../y\n+++ b/../y\n" + HUNK
    text = "hello\n" * first + good + bad + good.replace("x.py", "z.py")
    (message,) = incoming.messages(text.encode(), "x.diff")
    found = [one.where for one in message.problems(text.encode())]
    assert found == [f"x.diff:{first + 6}", f"x.diff:{first + 7}"]
    only = Message(shown="x.diff", length=message.length, parts=message.parts[1:])
    assert [one.where for one in only.problems(b"")] == found
    last = Message(shown="x.diff", length=message.length, parts=message.parts[::2])
    assert list(last.problems(b"")) == []


def test_without_parts_the_whole_text_is_judged() -> None:
    (message,) = incoming.messages(b"hello\n", "x.diff")
    assert (message.length, message.parts) == (1, ())
    assert [one.code for one in message.problems(b"hello\n")] == ["diff-empty"]
    assert [one.code for one in message.problems(b"\xff\n")] == ["diff-encoding"]


MAIL = "From " + "12ab" * 10 + " Mon Sep 17 00:00:00 2001\nSubject: {}\n\n"


def test_each_mail_is_a_message_of_its_own_and_those_without_a_diff_are_none() -> None:
    one, two = HEAD + HUNK, (HEAD + HUNK).replace("x.py", "y.py")
    text = MAIL.format("a") + one + MAIL.format("b") + MAIL.format("c") + two + one
    found = incoming.messages(text.encode(), "x.diff")
    assert [[p.name for p in message.parts] for message in found] == [["x.py"], ["y.py", "x.py"]]
    # a mail's text after a diff is no part of it
    assert found[0].parts[0].lines == tuple((HEAD + HUNK).splitlines())
    assert {message.length for message in found} == {len(text.splitlines())}
    (empty,) = incoming.messages((MAIL.format("a") * 2).encode(), "x.diff")
    assert (empty.parts, empty.length) == ((), 6)


@pytest.mark.parametrize(("more", "codes"), [(0, []), (1, ["import-commits"])])
def test_as_many_commits_are_read_as_the_error_says(more: int, codes: list[str]) -> None:
    text = MAIL.format("a") * (incoming.MOST_MAILS + more)
    found = list(incoming.unreadable(text.encode(), "x.diff"))
    assert [one.code for one in found] == codes
    assert incoming.MOST_MAILS == 100
    cut = list(incoming.unreadable((HEAD + "@@ -1,2 +1,2 @@\n-a\n").encode(), "x.diff"))
    assert [(one.code, one.where) for one in cut] == [("diff-malformed", "x.diff:4")]


@pytest.mark.parametrize(
    ("old", "new", "renamed", "refused", "shipped"),
    [
        ("vllm/x.py", "vllm/y.py", True, False, True),
        ("tests/x.py", "tests/y.py", True, False, False),
        ("vllm/x.py", "tests/y.py", True, True, True),
        ("vllm/x.py", "tests/y.py", False, False, False),
        ("tests/x.py", "vllm/y.py", True, True, True),
        ("tests/x.py", "vllm/y.py", False, False, True),
    ],
)
def test_a_file_that_leaves_or_enters_what_images_contain_is_refused(
    old: str, new: str, renamed: bool, refused: bool, shipped: bool
) -> None:
    one = Part(shown="s", old=old, new=new, first=7, lines=(), hunks=(), renamed=renamed)
    found = [(problem.code, problem.where) for problem in incoming.crossing(one, "x.diff")]
    assert found == [("import-rename", "x.diff:7")] * refused
    assert importing._is_shipped(one) is shipped


@pytest.mark.parametrize(
    ("name", "shipped"), [("..", True), (".", True), ("../x", True), (".hidden", False)]
)
def test_what_is_outside_the_tree_is_not_left_out_silently(name: str, shipped: bool) -> None:
    assert incoming.is_shipped(name) is shipped


@pytest.mark.parametrize(
    ("text", "subject"),
    [
        (MAIL.format("[PATCH] Fix it"), "Fix it"),
        (MAIL.format("[PATCH v2 3/4] Fix it"), "Fix it"),
        (MAIL.format("Fix it"), "Fix it"),
        (MAIL.format("One") + MAIL.format("Two"), "One"),
        ("hello\n", ""),
    ],
)
def test_the_subject_of_the_first_mail_is_read(text: str, subject: str) -> None:
    assert incoming.subject(text.encode()) == subject


@pytest.mark.parametrize(
    ("path", "project"),
    [
        *((name, "vllm") for name in ("vllm/x.py", "csrc/x.cu", "cmake/x.cmake")),
        *((name, "vllm") for name in ("requirements/cuda.txt", "setup.py", "CMakeLists.txt")),
        ("flashinfer/x.py", "flashinfer"),
        ("other/x.py", None),
        ("vllm.py", None),
    ],
)
def test_the_first_folder_tells_the_project(path: str, project: str | None) -> None:
    assert importing.PROJECTS.get(path.partition("/")[0]) == project


def given(shown: str = "dir/x.diff", **more: Any) -> _Given:
    return _Given(**{"shown": shown, "name": "x", "texts": {shown: b""}, **more})


NOTHING = _Kept(diffs=(), skipped=(), empty=())


@pytest.mark.parametrize(
    ("shown", "origin"), [("dir/x.diff", "x.diff"), ("mods/fix", "fix"), (".", "x"), ("/", "x")]
)
def test_a_patch_says_what_it_was_imported_from(shown: str, origin: str) -> None:
    words = importing._words(given(shown), NOTHING, unproven=False)
    assert words.origin == origin
    assert words.notes == f"Imported from {origin}; not measured yet."
    assert (words.summary, words.unproven) == ("", False)
    assert (words.address, words.sha256, words.imported) == ("", "", b"")


def test_a_patch_says_what_was_left_out_and_who_made_it() -> None:
    origin = Fetched(content=b"c", source=Source(address="https://h/x.diff", sha256="ab"))
    mail = MAIL.format("Fix it").encode()
    one = given(origin=origin, left=("run.sh", "a.txt"), texts={"1": b"", "2": mail})
    kept = _Kept(diffs=(), skipped=("docs/a", "docs/b"), empty=("e.py",))
    words = importing._words(one, kept, unproven=True)
    assert words == Words(
        summary="Fix it",
        notes="Imported from https://h/x.diff; not measured yet."
        " Left out, because no image contains it: docs/a, docs/b."
        " Left out, because it has no lines: e.py."
        " Not imported, please review: run.sh, a.txt.",
        origin="https://h/x.diff",
        unproven=True,
        address="https://h/x.diff",
        sha256="ab",
        imported=b"c",
    )
