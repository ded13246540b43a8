"""Shows why a diff does not apply: the hunk, and the lines of the file that it should match.

Pure, except for reading files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from unidiff.patch import Hunk, PatchedFile, PatchSet

#: Lines of context shown before and after the best match for a hunk.
CONTEXT = 2


def explain(diff: str, root: Path) -> str:
    """The hunks of ``diff`` that match nothing below ``root``, each with the best match."""
    return "\n".join(line for file in PatchSet(diff) for line in _of_file(file, root))


def _of_file(file: PatchedFile, root: Path) -> Iterator[str]:
    path = root / file.path
    if file.is_added_file:
        if path.exists():
            yield f"{file.path}: exists already, but the patch creates it"
        return
    if not path.is_file():
        yield f"{file.path}: does not exist"
        yield from (f"    a file with that name: {other}" for other in _same_name(path, root))
        return
    text = path.read_text(encoding="utf-8", errors="replace").splitlines()
    for number, hunk in enumerate(file, start=1):
        wanted = [
            line.value.rstrip("\n") for line in hunk if not line.is_added and line.line_type != "\\"
        ]
        if not _contains(text, wanted):
            yield (
                f"{file.path}: hunk {number} of {len(file)}, written for line "
                f"{hunk.source_start}, does not match"
            )
            yield from _hunk_and_file(hunk, text, wanted)


def moved(diff: str, root: Path) -> dict[str, str]:
    """The files of ``diff`` that are not below ``root``, and where most of their lines are.

    That is a file of the same name, if it has a third of the lines that the hunks expect, or else
    any other that has most of them.
    """
    found = {}
    for file in PatchSet(diff):
        if file.is_added_file or (root / file.path).is_file():
            continue
        lines = {line.value.strip() for hunk in file for line in hunk if not line.is_added} - {""}
        suffix = Path(file.path).suffix
        for pattern, share in ((Path(file.path).name, 1 / 3), (f"*{suffix}", 2 / 3)):
            ranked = [
                (_share(lines, path), str(path.relative_to(root)))
                for path in sorted(root.rglob(pattern))
                if path.is_file()
            ]
            best = max(ranked, default=(0.0, ""))
            if best[0] >= share:
                found[file.path] = best[1]
                break
    return found


def _share(lines: set[str], path: Path) -> float:
    text = path.read_text(encoding="utf-8", errors="replace")
    return len(lines & {line.strip() for line in text.splitlines()}) / max(len(lines), 1)


def _same_name(path: Path, root: Path) -> list[str]:
    return sorted(str(found.relative_to(root)) for found in root.rglob(path.name))[:3]


def _contains(text: Sequence[str], wanted: Sequence[str]) -> bool:
    length = len(wanted)
    return any(list(text[i : i + length]) == list(wanted) for i in range(len(text) - length + 1))


def _hunk_and_file(hunk: Hunk, text: Sequence[str], wanted: Sequence[str]) -> Iterator[str]:
    yield "    the hunk:"
    yield from (f"      {line.line_type}{line.value.rstrip()}" for line in hunk)
    start = best_match(text, wanted, hunk.source_start - 1)
    first, last = max(start - CONTEXT, 0), min(start + len(wanted) + CONTEXT, len(text))
    yield f"    the file, from line {first + 1}:"
    expected = set(wanted)
    # lines that the hunk expects are marked =, so that those that differ stand out
    yield from (
        f"      {'=' if line in expected else '?'} {n:5} {line}"
        for n, line in _numbered(text, first, last)
    )


def _numbered(text: Sequence[str], first: int, last: int) -> Iterator[tuple[int, str]]:
    yield from ((number + 1, text[number]) for number in range(first, last))


def best_match(text: Sequence[str], wanted: Sequence[str], guess: int) -> int:
    """The index in ``text`` (from 0) at which most lines of ``wanted`` match.

    Ties go to the index closest to ``guess``.
    """
    places: dict[str, list[int]] = {}
    for index, line in enumerate(text):
        places.setdefault(line, []).append(index)
    starts = {
        index - i for i, line in enumerate(wanted) if line.strip() for index in places.get(line, ())
    }

    def matches(start: int) -> int:
        return sum(
            start + i in places.get(line, ()) for i, line in enumerate(wanted) if line.strip()
        )

    best = max(starts or {guess}, key=lambda start: (matches(start), -abs(start - guess)))
    return min(max(best, 0), max(len(text) - 1, 0))
