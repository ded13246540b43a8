"""Audits of cells before they are built: made now, or recalled for a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from imagefactory import opening, pipeline
from imagefactory.auditing import auditing
from imagefactory.auditing.auditing import Audit, State
from imagefactory.errors import CheckFailedError
from imagefactory.locking.lock import Lock
from imagefactory.matrix.cell import Cell, request_of
from imagefactory.matrix.select import select
from imagefactory.planning import planning
from imagefactory.planning.decision import Action, Decision, Uncovered
from imagefactory.results import Planned
from imagefactory.workspace import Workspace


def plan(
    workspace: Workspace, selection: Sequence[str], *, allow_no_engine: bool = True
) -> Planned:
    """Plan what a build would do, which leaves out cells that an earlier audit found bad."""
    planned = pipeline.plan(
        workspace, selection, allow_no_engine=allow_no_engine, allow_uncovered=True
    )
    audits = auditing.recall([one.cell for one in planned.plans], planned.inputs)
    decisions = tuple(_unless_bad(one, audits.get(one.plan.cell.name)) for one in planned.decisions)
    return replace(planned, decisions=decisions, audits=audits)


def _unless_bad(decision: Decision, audit: Audit | None) -> Decision:
    """The decision about a cell, which is not built if its wheels cannot work together."""
    if decision.action is not Action.BUILD or audit is None or not audit.problems:
        return decision
    first = audit.problems[0]
    reason = f"{first.code}: {first.what.partition(chr(10))[0]}"
    return replace(decision, action=Action.BLOCKED, reason=reason)


def check(workspace: Workspace, selection: Sequence[str]) -> dict[str, State]:
    """Check that matrix, lock, patches and earlier audits agree; what these found, by cell.

    Raises InputError with the problems of the first three, CheckFailedError with those of audits.
    """
    inputs = opening.read(workspace)
    cells = select(inputs.matrix.cells, selection)
    pipeline.plan_cells(cells, inputs, None)
    audits = auditing.recall(cells, inputs)
    wrong = dict.fromkeys(problem for one in audits.values() for problem in one.problems)
    if wrong:
        raise CheckFailedError(wrong)
    return {
        cell.name: audits[cell.name].state if cell.name in audits else State.UNKNOWN
        for cell in cells
    }


def audit(
    workspace: Workspace, selection: Sequence[str]
) -> tuple[tuple[Audit, ...], tuple[Uncovered, ...]]:
    """Judge the locked wheels of the selected cells; also returns the cells that are not locked."""
    inputs = opening.read(workspace)
    cells, uncovered = planning.split(select(inputs.matrix.cells, selection), inputs)
    return auditing.audit_cells(cells, inputs), uncovered


def audit_locked(workspace: Workspace, old: Lock | None) -> tuple[Audit, ...]:
    """Judge the cells whose wheels are not those of ``old``, and others if that takes no time."""
    inputs = opening.read(workspace)
    unlocked = {cell.name for cell in inputs.lock.uncovered(inputs.matrix.cells)}
    cells = [cell for cell in inputs.matrix.cells if cell.name not in unlocked]
    known = {
        cell.name for cell in cells if old and _wheels(cell, old) == _wheels(cell, inputs.lock)
    }
    return auditing.audit_cells(cells, inputs, unless_long=known)


def _wheels(cell: Cell, lock: Lock) -> frozenset[str] | None:
    found = lock.find(request_of(cell))
    return frozenset(wheel.sha256 for wheel in found.wheels) if found else None
