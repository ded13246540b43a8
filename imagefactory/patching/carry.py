"""Carries a patch from one release to another; the proof decides whether it arrived."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from imagefactory.patching.measure import Bench, Measured
from imagefactory.patching.merge import MergedFile, copy_files, diff_of, merge
from imagefactory.patching.patch import Patch, State, Step, Variant
from imagefactory.patching.settle import Side, place
from imagefactory.patching.sources import SourceTree
from imagefactory.system.yamlfile import Location


class Outcome(StrEnum):
    """How carrying a patch to a release ended."""

    AS_IS = "as it is"
    MERGED = "merged"
    OBSOLETE = "obsolete"
    CONFLICT = "conflict"
    BROKEN = "broken"
    UNKNOWN = "unknown"

    @property
    def arrived(self) -> bool:
        """Whether the patch works on the new release, or is no longer needed there.

        Without a person's help.
        """
        return self in (Outcome.AS_IS, Outcome.MERGED, Outcome.OBSOLETE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """A patch on a new release.

    Attributes:
        outcome: how it ended.
        text: the diff for the new release; None for ``obsolete``, and where a person is needed.
        files: what the merge made of each file; empty if no merge was needed.
        seen: what was measured last.
        note: what a person should look at; empty for a merge without conflicts.
    """

    outcome: Outcome
    text: str | None
    files: tuple[MergedFile, ...]
    seen: Measured
    note: str = ""

    @property
    def moved(self) -> list[str]:
        """``old -> new`` for every file that upstream moved."""
        return [f"{file.old} -> {file.new}" for file in self.files if file.old != file.new]


def carry(patch: Patch, diff: Path, old: SourceTree, new: SourceTree, bench: Bench) -> Carried:
    """Try ``diff`` on ``new`` as it is, then merged.

    Raises CheckFailedError if it does not apply to ``old``.
    """
    as_is = judge(patch, diff, new, bench)
    plain = {
        State.NEEDED: Outcome.AS_IS,
        State.OBSOLETE: Outcome.OBSOLETE,
        State.UNKNOWN: Outcome.UNKNOWN,
    }
    if as_is.state in plain:
        outcome = plain[as_is.state]
        text = diff.read_text(encoding="utf-8") if outcome is Outcome.AS_IS else None
        return Carried(outcome=outcome, text=text, files=(), seen=as_is)
    files = merge(
        diff, old.root, new.root, (f"{old.project} {old.version}", f"{new.project} {new.version}")
    )
    for tried, note in _candidates(files):
        seen = _judge_text(patch, text_of(tried, new), new, bench, as_is)
        if seen.state is State.NEEDED:
            text = text_of(tried, new)
            return Carried(outcome=Outcome.MERGED, text=text, files=tried, seen=seen, note=note)
    conflict = any(file.conflicts for file in files)
    outcome = Outcome.CONFLICT if conflict else Outcome.BROKEN
    return Carried(outcome=outcome, text=None, files=files, seen=as_is if conflict else seen)


def _candidates(files: tuple[MergedFile, ...]) -> Iterator[tuple[tuple[MergedFile, ...], str]]:
    """What a merge may have meant.

    Its outcome if it has no conflict, else with the patch's own lines placed.
    """
    if not any(file.conflicts for file in files):
        yield files, ""
        return
    for side in Side:
        placed = [_placed(file, side) for file in files]
        whole = tuple(file for file in placed if file)
        if len(whole) == len(files):
            places = ", ".join(file.new for file in files if file.conflicts)
            yield (
                whole,
                f"its lines were placed {side} upstream's change in {places}: read the diff",
            )


def _placed(file: MergedFile, side: Side) -> MergedFile | None:
    if not file.conflicts:
        return file
    text = place(file.text, side) if file.text is not None else None
    return replace(file, text=text, conflicts=0) if text is not None else None


def _judge_text(
    patch: Patch, text: str, new: SourceTree, bench: Bench, as_is: Measured
) -> Measured:
    if not text:
        return replace(as_is, state=State.BROKEN, reason=_NOTHING)
    with tempfile.TemporaryDirectory(prefix="imagefactory-port-") as name:
        merged = Path(name) / "merged.diff"
        merged.write_text(text, encoding="utf-8")
        return judge(patch, merged, new, bench)


_NOTHING = "upstream has every line of the patch already, and the proof fails all the same"


def judge(patch: Patch, diff: Path, tree: SourceTree, bench: Bench) -> Measured:
    """The state of ``patch`` on ``tree`` with the text ``diff``."""
    variant = Variant(
        versions=patch.everywhere, diff=diff, location=Location(file=str(diff), line=1)
    )
    (row,) = bench.series(tree, [Step(patch=patch, version=tree.version, variant=variant)])
    return row


def text_of(files: Sequence[MergedFile], new: SourceTree) -> str:
    """The diff of a merge without conflicts against the new release."""
    with tempfile.TemporaryDirectory(prefix="imagefactory-port-") as name:
        write_merged(files, Path(name))
        return diff_of(new.root, Path(name), [file.new for file in files])


def write_merged(files: Sequence[MergedFile], root: Path) -> None:
    """Put what a merge made, conflict markers included, below ``root``."""
    copy_files(root, root, [])
    for file in files:
        target = root / file.new
        if file.text is None:
            target.unlink(missing_ok=True)
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.text)
