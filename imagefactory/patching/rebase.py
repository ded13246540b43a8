"""Rebases a patch from one release onto another; its proof decides whether that worked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType

from packaging.specifiers import SpecifierSet

from imagefactory.patching.measure import Bench, Measured, applies
from imagefactory.patching.merge import MergedFile, diff_of, merge
from imagefactory.patching.patch import Patch, State, Step, Variant
from imagefactory.patching.resolve_conflicts import Side, resolve
from imagefactory.patching.soundness import Texts, fault
from imagefactory.patching.sources import SourceTree
from imagefactory.system import temporary
from imagefactory.system.yamlfile import Location


class Outcome(StrEnum):
    """How rebasing a patch onto a release ended."""

    UNCHANGED = "unchanged"
    MERGED = "merged"
    OBSOLETE = "obsolete"
    UPSTREAM = "already upstream"
    UNPROVEN = "merged, unproven"
    CONFLICT = "conflict"
    BROKEN = "broken"
    UNKNOWN = "unknown"

    @property
    def succeeded(self) -> bool:
        """Whether the patch works on the new release, or is not needed there: no manual work."""
        return self in (Outcome.UNCHANGED, Outcome.MERGED, Outcome.OBSOLETE, Outcome.UPSTREAM)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebased:
    """A patch on a new release.

    Attributes:
        outcome: how it ended.
        text: the diff for the new release; None if it is obsolete or needs manual work. It is
            unproven if ``outcome`` is.
        files: the merge of each file; empty if no merge was needed.
        seen: the last measurement.
        note: what to review; empty for a merge without conflicts.
        fault: why a merge without conflicts was refused; empty if it was not.
    """

    outcome: Outcome
    text: str | None
    files: tuple[MergedFile, ...]
    seen: Measured
    note: str = ""
    fault: str = ""

    @property
    def moved(self) -> dict[str, str]:
        """The files that upstream moved: old path to new path."""
        return {file.old: file.new for file in self.files if file.old != file.new}


def rebase(patch: Patch, diff: Path, old: SourceTree, new: SourceTree, bench: Bench) -> Rebased:
    """Try ``diff`` on ``new`` unchanged, then merged.

    Raises CheckFailedError if it does not apply to ``old``.
    """
    unchanged = measure(patch, diff, new, bench)
    inconclusive = unchanged.state is State.UNKNOWN and applies(new, diff)
    if unchanged.state is State.OBSOLETE:
        return Rebased(outcome=Outcome.OBSOLETE, text=None, files=(), seen=unchanged)
    if unchanged.state.applied or inconclusive:
        outcome = Outcome.UNKNOWN if inconclusive else Outcome.UNCHANGED
        text = diff.read_text(encoding="utf-8")
        return Rebased(outcome=outcome, text=text, files=(), seen=unchanged)
    files = merge(
        diff, old.root, new.root, (f"{old.project} {old.version}", f"{new.project} {new.version}")
    )
    return _merged(patch, files, new, bench, unchanged)


def _merged(
    patch: Patch, files: tuple[MergedFile, ...], new: SourceTree, bench: Bench, unchanged: Measured
) -> Rebased:
    """The first candidate that holds: proven, else unproven; else why there is none."""
    failed = Rebased(outcome=Outcome.CONFLICT, text=None, files=files, seen=unchanged)
    unproven = None
    for tried, note in _candidates(files):
        text = text_of(tried, new)
        if not text:
            (seen,) = bench.series(new, [Step(patch=patch, version=new.version, variant=None)])
            return Rebased(outcome=Outcome.UPSTREAM, text=None, files=tried, seen=seen)
        if fault := _fault(tried, new):
            failed = replace(failed, fault=failed.fault or fault)
            continue
        found = Rebased(outcome=Outcome.MERGED, text=text, files=tried, seen=unchanged, note=note)
        seen = _measure_text(patch, text, new, bench, found.moved)
        if seen.state.proven:
            return replace(found, seen=seen)
        if seen.state in (State.UNKNOWN, State.UNPROVEN) and unproven is None:
            unproven = replace(found, outcome=Outcome.UNPROVEN, seen=seen)
        elif not any(file.conflicts for file in files):
            failed = replace(failed, outcome=Outcome.BROKEN, seen=seen)
    # where upstream's change and the patch's were put together, only a proof can say that it works
    return unproven if unproven and not unproven.note else failed


def _fault(files: Sequence[MergedFile], new: SourceTree) -> str:
    """What is wrong with the merged files, whatever the proof says; empty if nothing."""
    for file in files:
        if file.text is None:
            continue
        path = new.root / file.new
        upstream = path.read_bytes() if path.is_file() else b""
        merged, upstream_text, old, patched = (
            data.decode("utf-8", "replace")
            for data in (file.text, upstream, file.base, file.patched)
        )
        texts = Texts(merged=merged, upstream=upstream_text, old=old, patched=patched)
        if found := fault(file.new, texts):
            return found
    return ""


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
    patch: Patch, text: str, new: SourceTree, bench: Bench, moved: Mapping[str, str]
) -> Measured:
    with temporary.folder(prefix="imagefactory-port-") as folder:
        merged = folder / "merged.diff"
        merged.write_text(text, encoding="utf-8")
        return measure(patch, merged, new, bench, moved)


def measure(
    patch: Patch, diff: Path, tree: SourceTree, bench: Bench, moved: Mapping[str, str] | None = None
) -> Measured:
    """The state of ``patch`` on ``tree`` if ``diff`` is its diff.

    With ``moved``, the proof finds the files of new paths at their old ones, too.
    """
    location = Location(file=str(diff), line=1)
    variant = Variant(
        versions=SpecifierSet(), diff=diff, location=location, moved=MappingProxyType(moved or {})
    )
    (row,) = bench.series(tree, [Step(patch=patch, version=tree.version, variant=variant)])
    return row


def text_of(files: Sequence[MergedFile], new: SourceTree) -> str:
    """The diff from the new release to a merge without conflicts."""
    with temporary.folder(prefix="imagefactory-port-") as folder:
        write_merged(files, folder)
        return diff_of(new.root, folder, [file.new for file in files])


def write_merged(files: Sequence[MergedFile], root: Path) -> None:
    """Write the merged files, with any conflict markers, below ``root``."""
    for file in files:
        target = root / file.new
        if file.text is None:
            target.unlink(missing_ok=True)
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.text)
