"""Resolves merge conflicts in which a patch only adds lines: they go next to upstream's change.

Lines that upstream has added as well are not added again, and nothing but a paragraph of its own
is put where upstream removed what was there. Whether the result is right is for the patch's proof
to decide.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from enum import StrEnum

_BLOCK = re.compile(
    rb"^<{7} [^\n]*\n(?P<ours>.*?)^\|{7} [^\n]*\n(?P<base>.*?)^={7}\n(?P<theirs>.*?)^>{7} [^\n]*\n",
    re.MULTILINE | re.DOTALL,
)
#: A line of punctuation, such as a closing parenthesis, that says nothing about its origin.
_WORD = re.compile(rb"\w")


class Side(StrEnum):
    """Where the patch's added lines go: after or before the lines that upstream changed."""

    AFTER = "after"
    BEFORE = "before"


def resolve(text: bytes, side: Side) -> bytes | None:
    """``text`` with every conflict resolved; None if one cannot be resolved by adding lines."""
    failed = False

    def resolved(match: re.Match[bytes]) -> bytes:
        nonlocal failed
        ours, base, theirs = (
            match[name].splitlines(keepends=True) for name in ("ours", "base", "theirs")
        )
        if has_change(ours, base, theirs):
            return match["ours"]
        added = [] if is_removed(ours, base, theirs) else own_lines(ours, base, theirs)
        if not added:
            failed = True
        return b"".join([*ours, *added] if side is Side.AFTER else [*added, *ours])

    done = _BLOCK.sub(resolved, text)
    return None if failed or b"<<<<<<< " in done else done


def is_removed(ours: Sequence[bytes], base: Sequence[bytes], theirs: Sequence[bytes]) -> bool:
    """Whether upstream removed the lines around which the patch adds its own.

    A paragraph of its own, after the removed lines and no deeper than they were, needs none of
    them: it stays between what is before and after it.
    """
    before, now = (_words(lines) for lines in (base, ours))
    removed = len(now) < len(before) and not set(now) & set(before)
    return removed and (bool(now) or not _is_paragraph(base, theirs))


def _is_paragraph(base: Sequence[bytes], theirs: Sequence[bytes]) -> bool:
    """Whether the patch adds a paragraph after all of ``base``, indented as its first level is."""
    kept = b"".join(base).rstrip()
    added = b"".join(theirs)
    if not added.startswith(kept) or not re.match(rb"[ \t]*\n[ \t]*\n", added[len(kept) :]):
        return False
    own = added[len(kept) :].splitlines()
    levels = [min(map(_indent, filter(bytes.strip, lines)), default=0) for lines in (base, own)]
    return levels[0] == levels[1]


def _indent(line: bytes) -> int:
    return len(line) - len(line.lstrip())


def has_change(ours: Sequence[bytes], base: Sequence[bytes], theirs: Sequence[bytes]) -> bool:
    """Whether upstream's lines already contain all of the patch's change."""
    runs = _added_runs(base, theirs)
    gone = [line for line in _words(base) if line not in _words(theirs)]
    return (
        any(_words(run) for run in runs)
        and all(_contains(ours, run) for run in runs)
        and not any(line in _words(ours) for line in gone)
    )


def own_lines(ours: Sequence[bytes], base: Sequence[bytes], theirs: Sequence[bytes]) -> list[bytes]:
    """The lines that the patch adds and upstream does not; empty if it does more than add lines.

    Lines that the patch adds together stay together, with their punctuation.
    """
    removed = [line for line in base if line not in theirs]
    if not removed:
        runs = _added_runs(base, theirs)
        if len(runs) != 1 or _has_part(ours, base, runs[0]):
            return []
        return _with_blank_line(runs[0], theirs)
    # upstream removed the same lines and added some of the same: the patch only adds the rest
    agrees = any(line.strip() and line in ours for line in theirs)
    if not agrees or any(line in ours for line in removed):
        return []
    candidates = _added(base, theirs)
    new = candidates & _added(ours, theirs)
    for index in sorted(candidates - new):
        if index - 1 in new and not _WORD.search(theirs[index]):
            new.add(index)
    blank = {index - 1 for index in new if index and not theirs[index - 1].strip()}
    return [theirs[index] for index in sorted(new | blank)]


def _has_part(ours: Sequence[bytes], base: Sequence[bytes], run: Sequence[bytes]) -> bool:
    """Whether upstream seems to have added a part of ``run``: its first line, or most of them."""
    upstream = set(_words(ours)) - set(_words(base))
    mine = _words(run)
    shared = [line for line in mine if line in upstream]
    return bool(mine) and (mine[0] in upstream or 2 * len(shared) > len(mine))


def _with_blank_line(run: Sequence[bytes], theirs: Sequence[bytes]) -> list[bytes]:
    """``run`` with the blank line before it in the patched file, if there is one."""
    start = next(i for i in range(len(theirs)) if list(theirs[i : i + len(run)]) == list(run))
    if run[0].strip() and start and not theirs[start - 1].strip():
        return [theirs[start - 1], *run]
    return list(run)


def _added_runs(old: Sequence[bytes], new: Sequence[bytes]) -> list[list[bytes]]:
    """The lines of ``new`` that a diff against ``old`` shows as added, in contiguous runs."""
    runs: list[list[bytes]] = []
    last = -2
    for index in sorted(_added(old, new)):
        if index == last + 1:
            runs[-1].append(new[index])
        else:
            runs.append([new[index]])
        last = index
    return runs


def _added(old: Sequence[bytes], new: Sequence[bytes]) -> set[int]:
    """Indexes of the lines of ``new`` that a diff against ``old`` shows as added."""
    codes = difflib.SequenceMatcher(a=old, b=new, autojunk=False).get_opcodes()
    return {
        index
        for tag, _, _, first, last in codes
        if tag in ("insert", "replace")
        for index in range(first, last)
    }


def _words(lines: Sequence[bytes]) -> list[bytes]:
    return [line.strip() for line in lines if _WORD.search(line)]


def _contains(lines: Sequence[bytes], run: Sequence[bytes]) -> bool:
    wanted = [line for line in run if line.strip()]
    found = [line for line in lines if line.strip()]
    return any(found[i : i + len(wanted)] == wanted for i in range(len(found) - len(wanted) + 1))
