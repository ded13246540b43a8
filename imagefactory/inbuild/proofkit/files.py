"""Files of the tree, read and searched so that a program can trace what a proof looked at."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from .verdicts import Inconclusive

#: Audit events around a search of the tree.
SEARCH, SEARCHED = "imagefactory.search", "imagefactory.searched"


def read(path: Path) -> str:
    """The text of a file of the tree. Raises Inconclusive if there is none."""
    if not path.is_file():
        raise Inconclusive(f"there is no file {path}")
    return path.read_text(encoding="utf-8", errors="replace")


def holding(folder: Path, names: str, text: str = "") -> list[Path]:
    """The files below ``folder`` with a name like ``names`` and ``text`` in them, sorted.

    Both are regular expressions; ``names`` must match the whole name. Releases in which the same
    files are found are the same to a proof, whatever else the folder holds.
    """
    sys.audit(SEARCH, str(folder), names, text)
    try:
        return found_in(folder, names, text)
    finally:
        sys.audit(SEARCHED)


def found_in(folder: Path, names: str, text: str) -> list[Path]:
    """What ``holding`` gives."""
    name, inside = re.compile(names), re.compile(text.encode())
    files = (Path(at, one) for at, _, own in os.walk(folder) for one in own if name.fullmatch(one))
    return sorted(file for file in files if not text or inside.search(file.read_bytes()))
