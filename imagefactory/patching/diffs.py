"""Validates a diff before it is applied: anything unsafe or ambiguous is an error with its line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from unidiff.errors import UnidiffParseError
from unidiff.patch import PatchSet

from imagefactory.errors import Problem
from imagefactory.system import files

_FILE_LINE = re.compile(r"^(?:---|\+\+\+) (?P<name>[^\t\n]+)")
_HUNK = re.compile(r"^@@ -\d{1,9}(?:,(\d{1,9}))? \+\d{1,9}(?:,(\d{1,9}))? @@")
_MODE = re.compile(
    r"^(?:new file mode|old mode|new mode|deleted file mode|index [0-9a-f.]+) (?P<mode>\d+)"
)
#: What git's other header lines say that is wrong with a diff: code, problem and fix.
_WRONG_MODES = {
    "120000": (
        "diff-symlink",
        "the diff creates or changes a symbolic link",
        "change the link's target instead",
    ),
    "160000": (
        "diff-submodule",
        "the diff changes the commit of a submodule",
        "patch the files inside it instead",
    ),
}
_WRONG_MODE = (
    "diff-mode",
    "the diff sets a file mode that git does not have",
    "write 100644, or 100755 for a program",
)
_MOVED = re.compile(r"^(?:rename|copy) (?:from|to) (?P<name>.+)")
#: The largest diff that is read, in bytes.
LARGEST = 10_000_000


def problems(path: Path, shown: str) -> Iterator[Problem]:
    """Everything that is wrong with the diff at ``path``, which messages call ``shown``."""
    try:
        data = files.read(path, LARGEST)
    except OSError as error:
        what, fix = f"the diff cannot be read: {error.strerror}", "write a smaller one"
        yield Problem(code="diff-unreadable", where=f"{shown}:1", what=what, fix=fix)
        return
    if b"\0" in data:
        line = _line_at(data, data.index(b"\0"))
        what, fix = "the diff has a NUL byte", "patches change text only"
        yield Problem(code="diff-binary", where=f"{shown}:{line}", what=what, fix=fix)
        return
    if not data.strip():
        yield Problem(
            code="diff-empty",
            where=f"{shown}:1",
            what="the diff is empty",
            fix="delete it, or write the change",
        )
        return
    if b"\r\n" in data:
        line = _line_at(data, data.index(b"\r\n"))
        fix = (
            "convert it to LF; files with CRLF line endings cannot be patched with a diff, "
            "change them with a script"
        )
        what = "the diff has CRLF line endings"
        yield Problem(code="diff-crlf", where=f"{shown}:{line}", what=what, fix=fix)
        return
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        yield Problem(
            code="diff-encoding",
            where=f"{shown}:{_line_at(data, error.start)}",
            what="the diff is not UTF-8",
            fix="save it as UTF-8",
        )
        return
    yield from _lines(text, shown)
    yield from _parse(text, shown)


def _line_at(data: bytes, position: int) -> int:
    """The number, from 1, of the line at a position."""
    return data[:position].count(b"\n") + 1


def _lines(text: str, shown: str) -> Iterator[Problem]:
    seen: dict[str, int] = {}
    for number in _lines_after_hunks(text):
        what = (
            "a changed line follows the end of its hunk (the hunk's header counts fewer "
            "lines): git would drop it"
        )
        fix = "generate it again with: git diff --no-index, or imagefactory patch new"
        yield Problem(code="diff-malformed", where=f"{shown}:{number}", what=what, fix=fix)
    for number, line in headers(text):
        where = f"{shown}:{number}"
        if line.startswith(("GIT binary patch", "Binary files ")):
            fix = "patches change text only; ship binaries as a wheel"
            yield Problem(
                code="diff-binary", where=where, what="the diff has a binary hunk", fix=fix
            )
        mode = _MODE.match(line)
        if mode and mode["mode"] not in ("100644", "100755"):
            code, what, fix = _WRONG_MODES.get(mode["mode"], _WRONG_MODE)
            yield Problem(code=code, where=where, what=what, fix=fix)
        moved = _MOVED.match(line)
        if moved and _escapes(f"a/{moved['name']}"):
            what, fix = f"{moved['name']} is outside the tree", "name files relative to the tree"
            yield Problem(code="diff-escape", where=where, what=what, fix=fix)
        found = _FILE_LINE.match(line)
        if not found or found["name"] == "/dev/null":
            continue
        name = found["name"]
        if _escapes(name):
            fix = "write file names as a/PATH and b/PATH, relative to the tree"
            yield Problem(
                code="diff-escape",
                where=where,
                what=f"{name} is outside the tree, or has no a/ b/ prefix",
                fix=fix,
            )
        elif line.startswith("+++"):
            inside = name.partition("/")[2]
            if inside in seen:
                fix = "put all hunks of the file under one header"
                what = f"{inside} is changed twice, first on line {seen[inside]}"
                yield Problem(code="diff-twice", where=where, what=what, fix=fix)
            seen.setdefault(inside, number)


def headers(text: str) -> Iterator[tuple[int, str]]:
    """Lines outside hunks, numbered from 1.

    Inside a hunk, a removed line that begins with ``-- `` would look like a header.
    """
    return ((number, line) for number, line, is_header, _ in _rows(text) if is_header)


def cut_hunk(text: str) -> int:
    """The line, from 1, at which a hunk ends before its header says so; 0 if none does."""
    is_open = False
    for number, line, _, is_still_open in _rows(text):
        if is_open and line[:1] not in ("+", "-", " ", "\\", ""):
            return number
        is_open = is_still_open
    return number if is_open else 0


def _rows(text: str) -> Iterator[tuple[int, str, bool, bool]]:
    """Each line with its number, whether it is outside hunks, and whether a hunk goes on after it.

    The header of a hunk is a part of it.
    """
    old = new = 0
    for number, line in enumerate(split(text), start=1):
        is_inside = old > 0 or new > 0
        hunk = None if is_inside else _HUNK.match(line)
        if hunk:
            old, new = int(hunk[1] or 1), int(hunk[2] or 1)
        elif is_inside:
            old -= line[:1] in ("-", " ", "")
            new -= line[:1] in ("+", " ", "")
        yield number, line, not (hunk or is_inside), old > 0 or new > 0


def split(text: str) -> list[str]:
    """The lines of ``text`` as git sees them: a form feed, for one, ends none."""
    return text.removesuffix("\n").split("\n")


def _escapes(name: str) -> bool:
    prefix, _, inside = name.partition("/")
    parts = PurePosixPath(inside).parts
    return (
        prefix not in ("a", "b")
        or not inside
        or inside.startswith("/")
        or not name.isprintable()
        or ".." in parts
        or ".git" in parts
    )


def _parse(text: str, shown: str) -> Iterator[Problem]:
    try:
        changed = PatchSet(text)
    except (UnidiffParseError, ValueError) as error:  # a number may have thousands of digits
        fix = "generate it again with: git diff --no-index, or imagefactory patch new"
        where = f"{shown}:{_malformed_line(text)}"
        yield Problem(
            code="diff-malformed",
            where=where,
            what=f"not a unified diff: {str(error)[:200]}",
            fix=fix,
        )
        return
    bad_header = _bad_header(text)
    if bad_header:
        what, fix = "not a valid hunk header", "write it as @@ -LINE,COUNT +LINE,COUNT @@"
        yield Problem(code="diff-malformed", where=f"{shown}:{bad_header}", what=what, fix=fix)
    elif not changed or not any(len(file) for file in changed):
        what, fix = "the diff changes nothing", "delete it, or write the change"
        yield Problem(code="diff-empty", where=f"{shown}:1", what=what, fix=fix)


def _lines_after_hunks(text: str) -> Iterator[int]:
    """The first line after each hunk that looks like a part of it; git and unidiff ignore it."""
    inside = dict(headers(text))
    after_hunk = False
    for number, line in enumerate(split(text), start=1):
        if number not in inside or _HUNK.match(line):
            after_hunk = True
            continue
        part = line.startswith(("+", "-", " ")) and not line.startswith(("+++ ", "--- ", "-- "))
        if after_hunk and part:
            yield number
        after_hunk = False


def _malformed_line(text: str) -> int:
    """The line, from 1, at which a hunk ends early or is invalid; unidiff does not report it."""
    return min(filter(None, (_bad_header(text), cut_hunk(text))), default=len(split(text)))


def _bad_header(text: str) -> int:
    """The line, from 1, of the first header of a hunk that is not valid; 0 if there is none."""
    return next((number for number, line in headers(text) if line.startswith("@@")), 0)
