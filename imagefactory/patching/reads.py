"""Results of proofs by the content that was read: one proof for releases that agree in it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from imagefactory.inbuild import proofkit
from imagefactory.system import files

#: A path of a tree, and whether a proof listed that folder, or what names and text it searched for.
Read = tuple[str, bool | tuple[str, str]]


class Reads:
    """Results in ``folder``, each with what was read for it.

    A result holds for every tree in which all of that is the same. If ``fresh``, only those are
    found that were added to this object.
    """

    def __init__(self, folder: Path, *, fresh: bool = False) -> None:
        self._folder = folder
        self._fresh = fresh
        self._added: set[Path] = set()
        self._known: dict[tuple[Path, Read], str] = {}

    def find(self, key: str, root: Path) -> dict[str, str] | None:
        """The result for the question ``key`` that holds for the tree ``root``."""
        for file in sorted((self._folder / key).glob("*.json")):
            if self._fresh and file not in self._added:
                continue
            try:
                record = json.loads(file.read_text(encoding="utf-8"))
                reads = [(as_read(path, how), str(was)) for path, how, was in record[0]]
            except (OSError, ValueError, TypeError, LookupError):
                continue
            if all(self._print(root, read) == was for read, was in reads):
                return dict(record[1])
        return None

    def add(self, key: str, root: Path, reads: Iterable[Read], result: Mapping[str, str]) -> None:
        """Store the ``result`` for ``key`` that follows from what was read in ``root``."""
        rows = [[*read, self._print(root, read)] for read in sorted(set(reads), key=str)]
        text = json.dumps([rows, dict(result)])
        file = self._folder / key / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        files.write_text(file, text)
        self._added.add(file)

    def _print(self, root: Path, read: Read) -> str:
        """What ``read`` found in ``root``: a file's hash, a folder's names, or nothing."""
        known = self._known.get((root, read))
        if known is None:
            known = self._known[root, read] = _print(root / read[0], read[1])
        return known


def as_read(path: object, how: object) -> Read:
    """What was read, from JSON."""
    if isinstance(how, list):
        names, text = how
        return str(path), (str(names), str(text))
    return str(path), bool(how)


def _print(path: Path, how: bool | tuple[str, str]) -> str:
    if isinstance(how, tuple):
        return _print_of_search(path, *how)
    if path.is_file():
        return hashlib.sha256(path.read_bytes()).hexdigest()
    if not path.is_dir():
        return "missing"
    names = "\0".join(sorted(found.name for found in path.iterdir())) if how else ""
    return f"folder {hashlib.sha256(names.encode()).hexdigest()}" if how else "folder"


def _print_of_search(folder: Path, names: str, text: str) -> str:
    found = proofkit.found_in(folder, names, text)
    rows = [f"{file.relative_to(folder)} {_print(file, False)}" for file in found]
    return f"search {hashlib.sha256(chr(0).join(rows).encode()).hexdigest()}"
