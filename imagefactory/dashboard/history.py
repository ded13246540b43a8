"""The nights as the site shows them: one after the other, each with what changed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date
from itertools import groupby

from imagefactory.nightly.record import CellRecord, CellState, Record
from imagefactory.nightly.values import State

#: State of a patch on a version, by both names.
Patches = Mapping[tuple[str, str], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One thing that changed between two nights.

    Attributes:
        kind: ``versions``, ``states``, ``images``, ``cells`` or ``patches``.
        what: what it was and what it is.
        cells: the cells that it is about; empty for patches.
    """

    kind: str
    what: str
    cells: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Night:
    """A night with what is known of all its cells.

    Attributes:
        record: what the night itself recorded.
        id: what links to it name.
        day: on which it began, UTC.
        cells: by name; of a night without anything new, those of the night before.
        patches: the states that were measured in it, or before.
        changes: since the night before.
    """

    record: Record
    id: str
    day: date
    cells: Mapping[str, CellRecord]
    patches: Patches
    changes: tuple[Change, ...] = ()

    @property
    def minutes(self) -> float:
        """From its begin to its end; the clock may have been set back in between."""
        return max(0, (self.record.ended - self.record.began).total_seconds() / 60)


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """All nights.

    Attributes:
        nights: the oldest first.
        cells: the names of all cells: first those of the last night, in its order.
    """

    nights: tuple[Night, ...]
    cells: tuple[str, ...]

    @property
    def last(self) -> Night:
        """The last night."""
        return self.nights[-1]


def of(records: Iterable[Record]) -> History:
    """The history of ``records``, of which there is at least one."""
    nights: list[Night] = []
    cells: dict[str, CellRecord] = {}
    patches: dict[tuple[str, str], str] = {}
    for record in _shown(records):
        before, cells = cells, _cells(record, cells)
        measured = {(one.patch, one.version): one.state for one in record.patches}
        new = patches | measured if measured else patches
        changes = between(before, cells, patches, new) if nights else ()
        nights.append(
            Night(
                record=record,
                id=f"n{record.name.partition('.')[0]}",
                day=record.began.astimezone(UTC).date(),
                cells=cells,
                patches=new,
                changes=changes,
            )
        )
        patches = new
    names = dict.fromkeys(name for night in reversed(nights) for name in night.cells)
    return History(nights=tuple(nights), cells=tuple(names))


def _shown(records: Iterable[Record]) -> Iterable[Record]:
    """Without runs that found nothing new on a day on which there is another one."""
    ordered = sorted(records, key=lambda one: one.began)
    for _, group in groupby(ordered, key=lambda one: one.began.astimezone(UTC).date()):
        own = list(group)
        yield from [one for one in own if one.state is not State.QUIET] or own[-1:]


def _cells(record: Record, before: Mapping[str, CellRecord]) -> dict[str, CellRecord]:
    """The cells of a night, with what an earlier night knew of images that are the same."""
    if record.state is State.QUIET and not record.cells:
        return {name: _same(one) for name, one in before.items() if one.state.green}
    return {one.name: _filled(one, before.get(one.name)) for one in record.cells}


def _same(cell: CellRecord) -> CellRecord:
    if cell.state is CellState.UNCHANGED and cell.seconds is None:
        return cell
    return replace(cell, state=CellState.UNCHANGED, seconds=None)


def _filled(cell: CellRecord, before: CellRecord | None) -> CellRecord:
    known = cell.digest is not None and cell.size is not None
    if known or before is None or cell.build_key is None or cell.build_key != before.build_key:
        return cell
    if cell.digest not in (None, before.digest):
        return cell
    size = before.size if cell.size is None else cell.size
    return replace(cell, digest=before.digest, size=size)


def state_of(cell: CellRecord) -> str:
    """The state in one or two words, such as ``build failed``."""
    if cell.state is CellState.FAILED and cell.failures:
        return f"{cell.failures[0].step} failed"
    return str(cell.state)


def between(
    before: Mapping[str, CellRecord],
    after: Mapping[str, CellRecord],
    old: Patches,
    new: Patches,
) -> tuple[Change, ...]:
    """What changed from one night to another; ``old`` and ``new`` are the states of patches."""
    found: dict[tuple[str, str], list[str]] = {}
    for name in dict.fromkeys((*after, *before)):
        for kind, what, shown in _of_cell(before.get(name), after.get(name)):
            found.setdefault((kind, what), []).append(shown)
    for (patch, version), state in new.items() if new is not old else ():
        was = old.get((patch, version))
        if was != state:
            arrow = f"{was} → {state}" if was else state
            found[("patches", f"{patch} on {version}: {arrow}")] = []
    order = ("states", "versions", "images", "cells", "patches")
    changes = [Change(kind=kind, what=what, cells=tuple(c)) for (kind, what), c in found.items()]
    return tuple(sorted(changes, key=lambda one: order.index(one.kind)))


def _of_cell(before: CellRecord | None, after: CellRecord | None) -> Sequence[tuple[str, str, str]]:
    """Kind, what, and the cell as it is shown there."""
    if before is after or _is_equal(before, after):
        return ()
    if after is None:
        return (("cells", "removed", before.name if before else ""),)
    name = after.name
    if before is None:
        return (("cells", f"new ({_health(after)})", name),)
    found = []
    if _health(before) != _health(after):
        found.append(("states", f"{_health(before)} → {_health(after)}", name))
    for key in dict.fromkeys((*after.versions, *before.versions)):
        was, now = before.versions.get(key, "none"), after.versions.get(key, "none")
        if was != now and before.versions and after.versions:
            found.append(("versions", f"{key} {was} → {now}", name))
    if has_other_image(before, after):
        found.append(("images", "new image", name))
    return found


def _is_equal(before: CellRecord | None, after: CellRecord | None) -> bool:
    """Whether two green cells are the same; most are, so this is asked first."""
    return (
        before is not None
        and after is not None
        and before.build_key == after.build_key
        and before.digest == after.digest
        and before.versions == after.versions
        and before.state.green
        and after.state.green
    )


def _health(cell: CellRecord) -> str:
    return "green" if cell.state.green else state_of(cell)


def has_other_image(before: CellRecord, after: CellRecord) -> bool:
    """Whether the cell is known to have another image than before."""
    pairs = (before.digest, after.digest), (before.build_key, after.build_key)
    return after.state.green and any(was and now and was != now for was, now in pairs)
