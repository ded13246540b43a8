"""Settles merge conflicts in which a patch only adds lines.

They go beside upstream's change, and the proof judges.
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
    """Where the patch's own lines go: after or before what upstream made of the place."""

    AFTER = "after"
    BEFORE = "before"


def place(text: bytes, side: Side) -> bytes | None:
    """``text`` with every conflict settled.

    Or None if the patch does more than add lines in one of them.
    """
    failed = False

    def settled(match: re.Match[bytes]) -> bytes:
        nonlocal failed
        ours, base, theirs = (
            match[name].splitlines(keepends=True) for name in ("ours", "base", "theirs")
        )
        removed = [line for line in base if line not in theirs]
        own = own_lines(ours, base, theirs)
        # upstream took the same lines out, and put in some of the same: what is left of the patch
        # is added lines
        agreed = any(line.strip() and line in ours for line in theirs) and not any(
            line in ours for line in removed
        )
        if not own or (removed and not agreed):
            failed = True
        return b"".join([*ours, *own] if side is Side.AFTER else [*own, *ours])

    done = _BLOCK.sub(settled, text)
    return None if failed or b"<<<<<<< " in done else done


def own_lines(ours: Sequence[bytes], base: Sequence[bytes], theirs: Sequence[bytes]) -> list[bytes]:
    """The lines of ``theirs`` that neither upstream's side nor the base has.

    Each run with the blank line before it.
    """
    mine = _added(base, theirs) & _added(ours, theirs)
    blank = {index - 1 for index in mine if index and not theirs[index - 1].strip()}
    return [theirs[index] for index in sorted(mine | blank)]


def _added(old: Sequence[bytes], new: Sequence[bytes]) -> set[int]:
    """Indexes of the lines of ``new`` that ``old`` does not have at their place."""
    codes = difflib.SequenceMatcher(a=old, b=new, autojunk=False).get_opcodes()
    return {
        index
        for tag, _, _, first, last in codes
        if tag in ("insert", "replace")
        for index in range(first, last)
    }
