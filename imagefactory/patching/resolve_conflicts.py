"""Resolves merge conflicts in which a patch only adds lines: they go next to upstream's change.

Whether the result is right is for the patch's proof to decide.
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


class Side(StrEnum):
    """Where the patch's added lines go: after or before the lines that upstream changed."""

    AFTER = "after"
    BEFORE = "before"


def resolve(text: bytes, side: Side) -> bytes | None:
    """``text`` with every conflict resolved, or None if the patch does not only add lines."""
    failed = False

    def resolved(match: re.Match[bytes]) -> bytes:
        nonlocal failed
        ours, base, theirs = (
            match[name].splitlines(keepends=True) for name in ("ours", "base", "theirs")
        )
        removed = [line for line in base if line not in theirs]
        added = added_lines(ours, base, theirs)
        # upstream removed the same lines and added some of the same: the patch only adds the rest
        upstream_agrees = any(line.strip() and line in ours for line in theirs) and not any(
            line in ours for line in removed
        )
        if not added or (removed and not upstream_agrees):
            failed = True
        return b"".join([*ours, *added] if side is Side.AFTER else [*added, *ours])

    done = _BLOCK.sub(resolved, text)
    return None if failed or b"<<<<<<< " in done else done


def added_lines(
    ours: Sequence[bytes], base: Sequence[bytes], theirs: Sequence[bytes]
) -> list[bytes]:
    """The lines of ``theirs`` that neither upstream nor the base has, with blank lines before."""
    new = _added(base, theirs) & _added(ours, theirs)
    blank = {index - 1 for index in new if index and not theirs[index - 1].strip()}
    return [theirs[index] for index in sorted(new | blank)]


def _added(old: Sequence[bytes], new: Sequence[bytes]) -> set[int]:
    """Indexes of the lines of ``new`` that a diff against ``old`` shows as added."""
    codes = difflib.SequenceMatcher(a=old, b=new, autojunk=False).get_opcodes()
    return {
        index
        for tag, _, _, first, last in codes
        if tag in ("insert", "replace")
        for index in range(first, last)
    }
