"""Reads diffs as others write them: git's, mailed ones, and those of an installed tree.

Each becomes plain diffs with ``a/`` and ``b/`` before every path, without what no image contains.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from imagefactory.errors import Problem
from imagefactory.patching import diffs
from imagefactory.system import temporary

#: The first component of paths that no image contains; so are hidden files and pages beside them.
NOT_SHIPPED = frozenset(
    {
        *("docs", "tests", "benchmarks", "examples", "docker", "tools"),
        *("mkdocs.yaml", "pyproject.toml"),
    }
)
#: Folders of FlashInfer's repository that its wheel has elsewhere.
MOVED = {"csrc": "flashinfer/data/csrc", "include": "flashinfer/data/include"}
#: Commits that are read from one file; each is judged by itself.
MOST_MAILS = 100
#: The prefix of paths in diffs that were made in an installed tree.
_INSTALLED = re.compile(r"^(?:.*/)?(?:site|dist)-packages/")
_NAMES = re.compile(r"^(?P<key>---|\+\+\+|(?:rename|copy) (?:from|to)) (?P<name>[^\t\n]+)")
_RENAMES = ("rename from ", "rename to ", "copy from ", "copy to ")
_MAIL = re.compile(r"^From [0-9a-f]{40} ")
_SUBJECT = re.compile(r"^Subject: (?:\[PATCH[^]]*\] )?(.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What a diff says about one file.

    Attributes:
        shown: the diff's name in messages.
        old: the file's path before; empty if the diff creates it.
        new: its path afterwards; empty if the diff removes it.
        first: number of the part's first line, from 1.
        lines: all of its lines, with the paths in normal form.
        hunks: its hunks.
        renamed: whether the file is renamed or copied.
    """

    shown: str
    old: str
    new: str
    first: int
    lines: tuple[str, ...]
    hunks: tuple[str, ...]
    renamed: bool

    @property
    def name(self) -> str:
        """The path of the file."""
        return self.new or self.old

    @property
    def shown_name(self) -> str:
        """The path of the file, fit to be printed and written down."""
        name = self.name.encode(*_CODEC).decode("utf-8", "replace")
        return "".join(letter if letter.isprintable() else "?" for letter in name)

    @property
    def named(self) -> int:
        """Number of the line that names the file, from 1."""
        rows = (i for i, line in enumerate(self.lines) if line.startswith("--- "))
        return self.first + next(rows, 0)

    @property
    def changes(self) -> bool:
        """Whether it changes more than an empty file or a mode, which plain diffs do not have."""
        return bool(self.hunks) or self.renamed

    @property
    def text(self) -> str:
        """The part as git writes it, with ordinary modes."""
        old, new = (self.old, self.new) if self.renamed else (self.old and self.name, self.new)
        head = [f"diff --git a/{old or new} b/{new or old}"]
        if not old or not new:
            head.append(f"{'deleted' if old else 'new'} file mode 100644")
        head += [line for line in self.lines if self.renamed and line.startswith(_RENAMES)]
        if self.hunks:
            head.append(f"--- a/{old}" if old else "--- /dev/null")
            head.append(f"+++ b/{new}" if new else "+++ /dev/null")
        return "".join(f"{line}\n" for line in (*head, *self.hunks))


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One diff of a text: all of it, or one commit of several that were mailed together.

    Attributes:
        shown: the text's name in messages.
        length: number of the text's lines.
        parts: the files.
    """

    shown: str
    length: int
    parts: tuple[Part, ...]

    def problems(self, data: bytes) -> Iterator[Problem]:
        """What is wrong with its parts, at their own lines; without any, with the whole text."""
        lines = [""] * self.length
        for part in self.parts:
            start = part.first - 1
            lines[start : start + len(part.lines)] = part.lines
        text = "\n".join(lines).encode(*_CODEC) if self.parts else data
        with temporary.folder(prefix="imagefactory-import-") as folder:
            path = folder / "one.diff"
            path.write_bytes(text)
            yield from diffs.problems(path, self.shown)


_CODEC = "utf-8", "surrogateescape"


def messages(data: bytes, shown: str, *, flashinfer: bool | None = None) -> list[Message]:
    """The diffs in a text. ``flashinfer`` says whether it is of that project, if that is known."""
    # converted to text by hand: reading as text would silently convert line endings
    lines = diffs.split(data.decode(*_CODEC))
    outside = dict(diffs.headers("\n".join(lines)))
    mails = [0, *(number for number, line in outside.items() if _MAIL.match(line))]
    starts = list(_starts(outside))
    ends = [
        min((mail for mail in mails if start < mail < end), default=end)
        for start, end in zip(starts, [*starts[1:], len(lines) + 1], strict=False)
    ]
    spans = list(zip(starts, ends, strict=True))
    parts = [_part(shown, lines, span, outside, {}) for span in spans]
    firsts = {part.name.partition("/")[0] for part in parts}
    if flashinfer or (flashinfer is None and firsts & {"flashinfer", "include"}):
        parts = [_part(shown, lines, span, outside, MOVED) for span in spans]
    found = []
    for low, high in zip(mails, [*mails[1:], len(lines) + 1], strict=True):
        own = tuple(part for part in parts if low <= part.first < high)
        if own or len(mails) == 1:
            found.append(Message(shown=shown, length=len(lines), parts=own))
    return found or [Message(shown=shown, length=len(lines), parts=())]


def subject(data: bytes) -> str:
    """The subject of the first mail in a text, or an empty string."""
    found = _SUBJECT.search(data.decode("utf-8", "replace"))
    return found[1].strip() if found else ""


def unreadable(data: bytes, shown: str) -> Iterator[Problem]:
    """What keeps a text from being split into files: too many commits, or a hunk that is cut short.

    The file after such a hunk would count as a part of it.
    """
    text = data.decode(*_CODEC)
    mails = sum(bool(_MAIL.match(line)) for line in diffs.split(text))
    if mails > MOST_MAILS:
        what, fix = f"it has {mails} commits", "import one diff of all of them: git diff"
        yield Problem(code="import-commits", where=shown, what=what, fix=fix)
    line = diffs.cut_hunk(text)
    if line:
        what = "the hunk does not have the lines that its header counts"
        fix = "generate it again with: git diff --no-index, or imagefactory patch new"
        yield Problem(code="diff-malformed", where=f"{shown}:{line}", what=what, fix=fix)


def is_shipped(name: str) -> bool:
    """Whether an image may contain the file ``name``, a path in the project's repository."""
    first, _, rest = name.partition("/")
    page = not rest and first.endswith((".md", ".rst"))
    hidden = first.startswith(".") and first not in (".", "..")  # those are refused elsewhere
    return not (first in NOT_SHIPPED or hidden or page)


def crossing(part: Part, shown: str) -> Iterator[Problem]:
    """The problem of a file that moves between what images contain and what they do not."""
    if part.renamed and is_shipped(part.old) != is_shipped(part.new):
        what = f"{part.old} becomes {part.new}, and only one of them can be in an image"
        fix = "write it as a new file, or as one that is removed: git diff --no-renames"
        where = f"{shown}:{part.first}"
        yield Problem(code="import-rename", where=where, what=what, fix=fix)


def _starts(outside: Mapping[int, str]) -> Iterator[int]:
    """The numbers of the lines at which the parts begin.

    A header of git without hunks may be followed by a plain diff of another file.
    """
    header: str | None = None  # the file that git's header names, until its own lines do
    for number, line in outside.items():
        found = _NAMES.match(line)
        after = _NAMES.match(outside.get(number + 1, ""))
        if line.startswith("diff --git "):
            header = _same_name(line, {})
            yield number
        elif found and header is not None and found["key"].endswith(" from"):
            header = _normal(found["name"].strip(), {}, bare=True)
        elif found and after and (found["key"], after["key"]) == ("---", "+++"):
            names = [_normal(one["name"].strip(), {}) for one in (found, after)]
            if header is None or (header and header not in names):
                yield number
            header = None


def _part(
    shown: str,
    lines: Sequence[str],
    span: tuple[int, int],
    outside: Mapping[int, str],
    moved: Mapping[str, str],
) -> Part:
    """The part on the lines of ``span``; ``moved`` maps folders to where a wheel has them."""
    names: dict[str, str] = {}
    own = []
    for number in range(*span):
        line = lines[number - 1]
        found = _NAMES.match(line) if number in outside else None
        if found:
            bare = found["key"] not in ("---", "+++")
            name = _normal(found["name"].strip(), moved, bare=bare)
            names.setdefault(found["key"], name)
            prefix = {"---": "a/", "+++": "b/"}.get(found["key"], "")
            ending = "\r" if line.endswith("\r") else ""
            line = f"{found['key']} {prefix}{name}{ending}" if name else line
        own.append(line)
    both = _same_name(lines[span[0] - 1], moved)
    old = names.get("rename from", names.get("copy from", names.get("---", both)))
    new = names.get("rename to", names.get("copy to", names.get("+++", both)))
    hunks = [
        lines[number - 1]
        for number in range(*span)
        if number not in outside or lines[number - 1].startswith("\\")
    ]
    return Part(
        shown=shown,
        old=old,
        new=new,
        first=span[0],
        lines=tuple(own),
        hunks=tuple(hunks),
        renamed=any(key.startswith(("rename", "copy")) for key in names),
    )


def _same_name(line: str, moved: Mapping[str, str]) -> str:
    """The path in a line ``diff --git a/PATH b/PATH``; empty for another line."""
    rest = line.removeprefix("diff --git ")
    middle = len(rest) // 2
    halves = [_normal(half, moved) for half in (rest[:middle], rest[middle + 1 :])]
    return halves[0] if rest != line and halves[0] == halves[1] else ""


def _normal(path: str, moved: Mapping[str, str], *, bare: bool = False) -> str:
    """A path without prefixes; empty for no file. ``bare`` is one to which git adds none."""
    if path == "/dev/null":
        return ""
    inside = path if bare or not path.startswith(("a/", "b/")) else path[2:]
    first, slash, rest = _INSTALLED.sub("", inside).partition("/")
    return f"{moved.get(first, first)}{slash}{rest}"
