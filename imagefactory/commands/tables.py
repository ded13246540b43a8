"""Tables that several commands show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from imagefactory.auditing.auditing import Audit, State
from imagefactory.errors import CheckFailedError
from imagefactory.inspecting.anatomy import Layer
from imagefactory.inspecting.filetree import FileChange
from imagefactory.planning.decision import Action, Decision, Uncovered
from imagefactory.publishing.moving import Moved
from imagefactory.results import Planned
from imagefactory.system import ui
from imagefactory.verifying import report
from imagefactory.verifying.receipt import Receipt

AUDITED = {State.GOOD: "green", State.BAD: "red", State.UNKNOWN: "yellow"}
#: The number of files to list.
MOST_FILES = 50


def layers(title: str, layers: Sequence[Layer]) -> None:
    """A table of layers."""
    ui.table(
        title,
        ["digest", "content", "unpacked"],
        [[one.digest, one.purpose, ui.size(one.size)] for one in layers],
    )


def files(changes: Sequence[FileChange]) -> None:
    """A table of files, if there are any."""
    if changes:
        rows = [
            [c.path, c.what, ui.size(c.old_size), ui.size(c.new_size)] for c in changes[:MOST_FILES]
        ]
        ui.table(f"{len(changes)} files differ", ["file", "difference", "old", "new"], rows)
    if len(changes) > MOST_FILES:
        ui.say(f"the first {MOST_FILES} of {len(changes)} files; --json lists all of them")


def plan(planned: Planned) -> None:
    """A table of what a build does for each cell, with its audit if that was looked up."""
    colour = {Action.BUILD: "yellow", Action.SKIP: "green", Action.BLOCKED: "red"}
    rows: list[list[ui.Part]] = [
        [
            ui.styled(one.plan.cell.name, "bold"),
            ui.styled(one.action, colour[one.action]),
            one.plan.build_key[:12],
            *_audited(one.plan.cell.name, planned),
            one.reason,
        ]
        for one in planned.decisions
    ]
    rows += [
        [
            ui.styled(one.cell.name, "bold"),
            ui.styled(Action.BLOCKED, "red"),
            "",
            *_audited(one.cell.name, planned),
            one.reason,
        ]
        for one in planned.uncovered
    ]
    more = [] if planned.audits is None else ["audit"]
    ui.table("plan", ["cell", "action", "build key", *more, "reason"], rows)
    _warn_of_unproven(planned)


def _audited(name: str, planned: Planned) -> list[ui.Part]:
    if planned.audits is None:
        return []
    found = planned.audits.get(name)
    state = found.state if found else State.UNKNOWN
    return [ui.styled(state, AUDITED[state])]


def _row(row: Decision | Uncovered, planned: Planned) -> dict[str, object]:
    name = row.plan.cell.name if isinstance(row, Decision) else row.cell.name
    found = (planned.audits or {}).get(name, Audit(cell=name))
    state = found.state if name in (planned.audits or {}) else State.UNKNOWN
    problems = [problem.as_dict() for problem in found.problems]
    return {**row.as_dict(), "audit": {"state": state, "problems": problems}}


def _warn_of_unproven(planned: Planned) -> None:
    cells: dict[str, list[str]] = {}
    for one in planned.plans:
        for name in one.unproven:
            cells.setdefault(name, []).append(one.cell.name)
    for name, own in cells.items():
        ui.warn(f"unproven patch {name}: nothing shows what it does ({', '.join(own)})")


def result_of_plan(planned: Planned, *, json: bool) -> None:
    """Show a plan as the result of a command.

    Raises CheckFailedError if audits found cells bad, InputError if cells are not locked.
    """
    if json:
        ui.emit_json([_row(row, planned) for row in planned.rows])
    else:
        plan(planned)
    unlocked = planned.error
    if planned.bad:
        raise CheckFailedError([*planned.bad, *(unlocked.problems if unlocked else ())])
    if unlocked:
        raise unlocked


def receipt(done: Receipt) -> None:
    """A table of the checks of one verification."""
    report.show(done)


def moved(done: Moved, *, json: bool) -> None:
    """Show where a moving tag is now as the result of a command."""
    if json:
        ui.emit_json(asdict(done))
        return
    ui.line(f"{done.tag} is {done.image} ({done.digest})")
    ui.line(f"  verified {done.receipt}")
    was = f"it was {done.before}" if done.before else "it is new"
    ui.line(f"  {was if done.moved else 'it was that already'}; recorded as {done.record}")
