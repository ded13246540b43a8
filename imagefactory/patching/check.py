"""Checks the whole series of a cell on upstream's sources before anything is built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from imagefactory.errors import Problem
from imagefactory.locking.lock import Lock
from imagefactory.matrix.cell import Cell
from imagefactory.patching import sources
from imagefactory.patching.measure import Bench, Measured
from imagefactory.patching.patch import State, Step
from imagefactory.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The measured states of one cell's series; ``problems`` are the reasons not to build it."""

    cell: str
    rows: tuple[Measured, ...]
    problems: tuple[Problem, ...]


def check(
    cell: Cell, steps: Sequence[Step], bench: Bench, lock: Lock | None, settings: Settings
) -> Checked:
    """Apply and prove ``steps`` project by project, as the build does.

    With a ``lock``, the sources are those of what the cell installs, even if that is not a release.
    Raises SetupError if the sources are not available.
    """
    rows: dict[str, Measured] = {}
    foreign = set()
    for project, own in _by_project(steps).items():
        tree = sources.of_cell(project, cell, lock, settings)
        rows |= {row.patch: row for row in bench.series(tree, own)}
        if not tree.released:
            foreign.add(project)
    ordered = tuple(rows[step.patch.name] for step in steps)
    found = [
        _problem(cell, step, row, foreign=step.patch.project in foreign)
        for step, row in zip(steps, ordered, strict=True)
        if row.state.stops_build
    ]
    return Checked(cell=cell.name, rows=ordered, problems=tuple(found))


def _by_project(steps: Sequence[Step]) -> Mapping[str, list[Step]]:
    found: dict[str, list[Step]] = {}
    for step in steps:
        found.setdefault(step.patch.project, []).append(step)
    return found


def _problem(cell: Cell, step: Step, row: Measured, *, foreign: bool) -> Problem:
    """``foreign`` sources are those of no release, to which no patch can be ported."""
    patch, variant = step.patch, step.variant
    if foreign:
        fix = (
            f"the sources are of no release, so it cannot be ported: remove {patch.name} from "
            f"flavor {cell.flavor.name}"
        )
    elif row.state is State.BROKEN:
        fix = (
            f"it applies but no longer works: fix {patch.shown}, or remove it from "
            f"flavor {cell.flavor.name}"
        )
    elif variant is None:
        fix = f"imagefactory patch port {patch.name} --to {step.version}"
        if patch.unproven:
            fix += f", or declare it in {patch.shown}: `not_applicable`"
    else:
        fix = (
            f"imagefactory patch port {patch.name} --to {step.version} merges it with "
            "upstream's changes"
        )
    return Problem(
        code=f"patch-{row.state}",
        where=str(variant.location) if variant else patch.shown,
        what=f"{cell.name}: {patch.name} is {row.state}: {row.reason}",
        fix=fix,
        detail=row.detail,
    )
