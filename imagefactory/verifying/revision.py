"""The revision of the checks: a hash of the programs that verify an image.

Two versions may have checks of the same names, of which the later is stricter. So a receipt names
the revision that made it, and equal programs give an equal one on any machine.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

#: What decides a verdict: programs, and rules as data.
SUFFIXES = (".py", ".toml")
DIGITS = 16


def of(folder: Path) -> str:
    """The revision of the programs in ``folder`` and below it; tests decide nothing."""
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*"), key=lambda path: path.relative_to(folder).as_posix()):
        if path.suffix in SUFFIXES and not path.name.startswith(("test_", ".")):
            found.update(path.relative_to(folder).as_posix().encode() + b"\0")
            found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()[:DIGITS]


@cache
def of_checks() -> str:
    """The revision of this version's checks."""
    return of(Path(__file__).parent)
