"""Applies those hunks of a diff that match, and marks the others as conflicts."""

from __future__ import annotations

from collections.abc import Sequence

from unidiff.patch import Hunk, PatchedFile, PatchSet

from imagefactory.patching import conflicts
from imagefactory.patching.merge import MergedFile
from imagefactory.patching.sources import SourceTree


def fitting(diffs: Sequence[str], tree: SourceTree) -> int:
    """How many hunks of ``diffs`` match files of ``tree``."""
    return sum(
        _position(hunk, _lines(file, tree)) is not None
        for diff in diffs
        for file in PatchSet(diff)
        for hunk in file
        if not file.is_added_file
    )


def merged(diffs: Sequence[str], tree: SourceTree) -> tuple[MergedFile, ...]:
    """The files that ``diffs`` change in ``tree``, with markers where a hunk has no match."""
    found: dict[str, MergedFile] = {}
    for file in (file for diff in diffs for file in PatchSet(diff)):
        before = found.get(file.path)
        text = (before.text or b"").decode().splitlines() if before else _lines(file, tree)
        count = before.conflicts if before else 0
        for hunk in reversed(list(file)):
            start = _position(hunk, text)
            new = [_text(line.value) for line in hunk if line.is_added or line.is_context]
            if start is not None:
                text[start : start + hunk.source_length] = new
                continue
            count += 1
            wanted = _expected(hunk)
            start = conflicts.best_match(text, wanted, hunk.source_start - 1) if text else 0
            end = min(start + len(wanted), len(text))
            label = f"{tree.project} {tree.version}"
            text[start:end] = [
                *(f"<<<<<<< {label}", *text[start:end]),
                *("||||||| the diff expects", *wanted),
                *("=======", *new, ">>>>>>> patch"),
            ]
        data = "".join(f"{line}\n" for line in text).encode()
        found[file.path] = MergedFile(old=file.path, new=file.path, text=data, conflicts=count)
    return tuple(found.values())


def _lines(file: PatchedFile, tree: SourceTree) -> list[str]:
    path = tree.root / file.path
    return path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []


def _expected(hunk: Hunk) -> list[str]:
    return [_text(line.value) for line in hunk if line.is_removed or line.is_context]


def _text(value: str) -> str:
    return value.rstrip("\n")


def _position(hunk: Hunk, text: Sequence[str]) -> int | None:
    """Where the lines that a hunk expects are: nearest to the line that it was made for."""
    wanted = _expected(hunk)
    last = len(text) - len(wanted)
    starts = [i for i in range(last + 1) if list(text[i : i + len(wanted)]) == wanted]
    return min(starts, key=lambda start: abs(start - hunk.source_start + 1), default=None)
