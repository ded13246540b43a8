"""New values for the rows of a matrix: what the policy allows and every cell of a row could have.

Pure: the upstream is a value, and the day is an argument.

Rows that differ only in their releases are a family. Each row takes the newest patch release of its
line, in its place. The newest row of a family also follows what is newer than its line, in a new
row, so that images that work stay in the matrix until somebody removes them. A row of a version
before a release is replaced by what follows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from itertools import islice

from packaging.version import Version

from imagefactory.errors import SetupError
from imagefactory.matrix.cell import Cell, request_of
from imagefactory.matrix.policies import Policies, line_of
from imagefactory.watching.assessing import (
    Pin,
    Verdict,
    View,
    assess,
    first_block,
    leads,
    pins,
    wheel_for,
)
from imagefactory.watching.releases import Release, Upstream, WheelFile

#: How many releases are tried before a row is left as it is.
MOST_TRIED = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one line of the matrix decides: the values of axes that are written together.

    Attributes:
        section: ``zip``, ``include`` or ``axes``.
        where: file and line of the leading axis.
        lead: the leading axis.
        values: axis -> value, of the axes that the row itself has.
        cells: the cells that it is part of.
    """

    section: str
    where: str
    lead: str
    values: Mapping[str, str]
    cells: tuple[Cell, ...] = field(repr=False)

    @property
    def version(self) -> Version:
        """The current release."""
        return Version(self.values[self.lead])

    @property
    def family(self) -> frozenset[tuple[str, str]]:
        """What rows have in common that are releases of the same images."""
        moving = {*pins(self.cells[0])}
        return frozenset(
            (axis, value)
            for cell in self.cells
            for axis, value in cell.axes.items()
            if axis not in moving or (axis not in self.values and axis != self.lead)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A proposed change of a row.

    Attributes:
        row: the row that it starts from.
        values: axis -> new value, of those that change.
        replaces: whether it takes the row's place, or is a row of its own.
    """

    row: Row
    values: Mapping[str, str]
    replaces: bool

    @property
    def version(self) -> str:
        """The new release."""
        return self.values[self.row.lead]

    @property
    def kind(self) -> str:
        """What happens to the row, for people."""
        return "replace" if self.replaces else "new row"

    @property
    def changes(self) -> str:
        """The values that change, for people."""
        pairs = ((self.row.values[axis], axis, value) for axis, value in self.values.items())
        return ", ".join(f"{axis} {old} -> {new}" for old, axis, new in pairs)

    def as_dict(self) -> dict[str, object]:
        """The candidate as plain JSON values."""
        return {
            "where": self.row.where,
            "section": self.row.section,
            "axis": self.row.lead,
            "old": dict(self.row.values),
            "new": {**self.row.values, **self.values},
            "replaces": self.replaces,
        }


def rows(cells: Iterable[Cell], policies: Policies) -> list[Row]:
    """The rows with a leading axis, in the order of the cells."""
    found: dict[tuple[object, ...], list[Cell]] = {}
    for cell in cells:
        for pin in leads(cell, policies):
            found.setdefault((pin.axis, *_where(cell, pin.axis)), []).append(cell)
    return [
        Row(
            section=str(section),
            where=str(where),
            lead=str(lead),
            values=dict(values),  # type: ignore[call-overload]
            cells=tuple(users),
        )
        for (lead, section, where, values), users in found.items()
    ]


def _where(cell: Cell, axis: str) -> tuple[str, str, tuple[tuple[str, str], ...]]:
    """Where a row is: its section, its line, and the values that are written there."""
    where = cell.locations[axis]
    if where.section in ("axes", "defaults"):
        return where.section, str(where), ((axis, cell.axes[axis]),)
    beside = (
        (name, cell.axes[name])
        for name, at in cell.locations.items()
        if at.section == where.section
    )
    return where.section, str(where), tuple(beside)


def candidates(
    cells: Iterable[Cell], releases: Upstream, policies: Policies, today: date
) -> tuple[Candidate, ...]:
    """What to change in the rows of ``cells``; a project that is unknown upstream proposes nothing.

    No candidate is outside the policy or older than its row, and none is left once all of them
    have been written into the matrix.
    """
    view = View(upstream=releases, policies=policies, today=today)
    families: dict[tuple[str, frozenset[tuple[str, str]]], list[Row]] = {}
    for row in rows(cells, policies):
        if row.section != "defaults":  # a default is nobody's row
            families.setdefault((row.lead, row.family), []).append(row)
    return tuple(one for family in families.values() for one in _of_family(family, view))


def to_read(cells: Iterable[Cell], view: View) -> list[tuple[str, WheelFile]]:
    """The wheels whose requirements are going to be read for ``cells``, with their projects."""
    found: dict[tuple[str, WheelFile], None] = {}
    for row in rows(cells, view.policies):
        for cell in row.cells:
            pin = pins(cell)[row.lead]
            for release in islice(_allowed(row, pin, view), MOST_TRIED):
                wheel = wheel_for(release, request_of(cell))
                if not isinstance(wheel, str):
                    found[pin.project, wheel] = None
    return list(found)


def _of_family(family: Sequence[Row], view: View) -> Iterator[Candidate]:
    stable = [row for row in family if not row.version.is_prerelease]
    early = [row for row in family if row.version.is_prerelease]
    known = {row.version.public for row in family}
    for row in stable:
        found = _best(row, view, known, replaces=True)
        if found:
            known.add(_public(found))
            yield found
    new = None
    if stable:
        head = max(stable, key=lambda row: row.version)
        new = _best(head, view, known, replaces=False, early=False)
    newest = max(Version(text) for text in (*known, *([_public(new)] if new else ())))
    base = max(early or stable, key=lambda row: row.version)
    soon = _best(base, view, known, replaces=bool(early), early=True, above=newest)
    if soon is None and new and early and base.version < Version(new.version):
        # the release that the early versions led to takes their place
        soon, new = _best(base, view, known, replaces=True, early=False), None
    elif soon is None and early and not stable:
        soon = _best(base, view, known, replaces=True, early=False)
    yield from (one for one in (new, soon) if one)


def _best(
    row: Row,
    view: View,
    known: set[str],
    *,
    replaces: bool,
    early: bool = False,
    above: Version | None = None,
) -> Candidate | None:
    """The newest release that ``row`` could have.

    A stable row is replaced within its line, and extended by what is beyond it. With ``early``,
    only versions before a release count, those newer than ``above``.
    """
    pin = pins(row.cells[0])[row.lead]
    tried = 0
    for release in _allowed(row, pin, view):
        version = release.version
        is_near = line_of(version) == line_of(row.version)
        if version.is_prerelease != early or version.public in known:
            continue
        if not row.version.is_prerelease and not early and is_near != replaces:
            continue
        if above and version <= above:
            break
        tried += 1
        if tried > MOST_TRIED:
            break
        values = _agreed(row, release, view, replaces=replaces)
        if values:
            return Candidate(row=row, values=values, replaces=replaces)
    return None


def _allowed(row: Row, pin: Pin, view: View) -> Iterator[Release]:
    """The newer releases that policies allow, the newest first."""
    current = row.version
    for release in view.upstream.listing(pin.project, pin.index).newest_first:
        if release.version <= current:
            return
        moved = release.version.public != current.public
        if moved and not first_block(release, current, pin.names, view):
            yield release


def _agreed(row: Row, release: Release, view: View, *, replaces: bool) -> dict[str, str] | None:
    """The values that all cells of ``row`` could have; None if one of them could not."""
    agreed: dict[str, str] = {}
    for cell in row.cells:
        verdict = judge(cell, row.lead, release.version, view, replaces=replaces)
        if verdict is None or not verdict.ok:
            return None
        changed = {a: v for a, v in verdict.values.items() if v != cell.axes[a]}
        if any(axis not in row.values for axis in changed):
            return None  # another line decides that axis, for other rows too
        if any(agreed.get(axis, value) != value for axis, value in verdict.values.items()):
            return None
        agreed |= verdict.values
    return {axis: value for axis, value in agreed.items() if row.values.get(axis) != value}


def judge(cell: Cell, axis: str, version: Version, view: View, *, replaces: bool) -> Verdict | None:
    """Whether ``cell`` could have that version; None if it is unknown to the cell's index."""
    pin = pins(cell).get(axis)
    release = view.upstream.listing(pin.project, pin.index).of(version) if pin else None
    if pin is None or release is None:
        return None
    try:
        return assess(cell, pin, release, view, replaces=replaces)
    except SetupError:
        return None


def _public(candidate: Candidate) -> str:
    return Version(candidate.version).public
