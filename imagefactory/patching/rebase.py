"""Rebases a patch from one release onto another; its proof decides whether that worked."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from packaging.specifiers import SpecifierSet

from imagefactory.patching.measure import Bench, Measured
from imagefactory.patching.merge import MergedFile, diff_of, merge
from imagefactory.patching.patch import Patch, State, Step, Variant
from imagefactory.patching.resolve_conflicts import Side, resolve
from imagefactory.patching.sources import SourceTree
from imagefactory.system.yamlfile import Location


class Outcome(StrEnum):
    """How rebasing a patch onto a release ended."""

    UNCHANGED = "unchanged"
    MERGED = "merged"
    OBSOLETE = "obsolete"
    CONFLICT = "conflict"
    BROKEN = "broken"
    UNKNOWN = "unknown"

    @property
    def succeeded(self) -> bool:
        """Whether the patch works on the new release, or is not needed there: no manual work."""
        return self in (Outcome.UNCHANGED, Outcome.MERGED, Outcome.OBSOLETE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebased:
    """A patch on a new release.

    Attributes:
        outcome: how it ended.
        text: the diff for the new release; None if it is obsolete or needs manual work.
        files: the merge of each file; empty if no merge was needed.
        seen: the last measurement.
        note: what to review; empty for a merge without conflicts.
    """

    outcome: Outcome
    text: str | None
    files: tuple[MergedFile, ...]
    seen: Measured
    note: str = ""

    @property
    def moved(self) -> list[str]:
        """``old -> new`` for each file that upstream moved."""
        return [f"{file.old} -> {file.new}" for file in self.files if file.old != file.new]


def rebase(patch: Patch, diff: Path, old: SourceTree, new: SourceTree, bench: Bench) -> Rebased:
    """Try ``diff`` on ``new`` unchanged, then merged.

    Raises CheckFailedError if it does not apply to ``old``.
    """
    unchanged = measure(patch, diff, new, bench)
    without_merge = {
        State.NEEDED: Outcome.UNCHANGED,
        State.OBSOLETE: Outcome.OBSOLETE,
        State.UNKNOWN: Outcome.UNKNOWN,
    }
    if unchanged.state in without_merge:
        outcome = without_merge[unchanged.state]
        text = diff.read_text(encoding="utf-8") if outcome is Outcome.UNCHANGED else None
        return Rebased(outcome=outcome, text=text, files=(), seen=unchanged)
    files = merge(
        diff, old.root, new.root, (f"{old.project} {old.version}", f"{new.project} {new.version}")
    )
    for tried, note in _candidates(files):
        seen = _measure_text(patch, text_of(tried, new), new, bench, unchanged)
        if seen.state is State.NEEDED:
            text = text_of(tried, new)
            return Rebased(outcome=Outcome.MERGED, text=text, files=tried, seen=seen, note=note)
    conflict = any(file.conflicts for file in files)
    outcome = Outcome.CONFLICT if conflict else Outcome.BROKEN
    return Rebased(outcome=outcome, text=None, files=files, seen=unchanged if conflict else seen)


def _candidates(files: tuple[MergedFile, ...]) -> Iterator[tuple[tuple[MergedFile, ...], str]]:
    """The merge if it has no conflicts, else its automatic resolutions; each with a note."""
    if not any(file.conflicts for file in files):
        yield files, ""
        return
    for side in Side:
        resolved = [_resolved(file, side) for file in files]
        complete = tuple(file for file in resolved if file)
        if len(complete) == len(files):
            names = ", ".join(file.new for file in files if file.conflicts)
            note = f"conflict resolved (review it): lines added {side} upstream's change in {names}"
            yield complete, note


def _resolved(file: MergedFile, side: Side) -> MergedFile | None:
    if not file.conflicts:
        return file
    text = resolve(file.text, side) if file.text is not None else None
    return replace(file, text=text, conflicts=0) if text is not None else None


def _measure_text(
    patch: Patch, text: str, new: SourceTree, bench: Bench, unchanged: Measured
) -> Measured:
    if not text:
        return replace(unchanged, state=State.BROKEN, reason=_EMPTY)
    with tempfile.TemporaryDirectory(prefix="imagefactory-port-") as name:
        merged = Path(name) / "merged.diff"
        merged.write_text(text, encoding="utf-8")
        return measure(patch, merged, new, bench)


_EMPTY = "upstream already has every line of the patch, but the proof still fails"


def measure(patch: Patch, diff: Path, tree: SourceTree, bench: Bench) -> Measured:
    """The state of ``patch`` on ``tree`` if ``diff`` is its diff."""
    location = Location(file=str(diff), line=1)
    variant = Variant(versions=SpecifierSet(), diff=diff, location=location)
    (row,) = bench.series(tree, [Step(patch=patch, version=tree.version, variant=variant)])
    return row


def text_of(files: Sequence[MergedFile], new: SourceTree) -> str:
    """The diff from the new release to a merge without conflicts."""
    with tempfile.TemporaryDirectory(prefix="imagefactory-port-") as name:
        write_merged(files, Path(name))
        return diff_of(new.root, Path(name), [file.new for file in files])


def write_merged(files: Sequence[MergedFile], root: Path) -> None:
    """Write the merged files, with any conflict markers, below ``root``."""
    for file in files:
        target = root / file.new
        if file.text is None:
            target.unlink(missing_ok=True)
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.text)
