"""Tables that several commands show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from imagefactory.inspecting.anatomy import Layer
from imagefactory.inspecting.filetree import FileChange
from imagefactory.planning.decision import Action
from imagefactory.publishing.moving import Moved
from imagefactory.results import Planned
from imagefactory.system import ui
from imagefactory.verifying import report
from imagefactory.verifying.receipt import Receipt

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
    """A table of what a build does for each cell."""
    colour = {Action.BUILD: "yellow", Action.SKIP: "green"}
    rows: list[list[ui.Part]] = [
        [
            ui.styled(one.plan.cell.name, "bold"),
            ui.styled(one.action, colour[one.action]),
            one.plan.build_key[:12],
            one.reason,
        ]
        for one in planned.decisions
    ]
    rows += [
        [ui.styled(one.cell.name, "bold"), ui.styled(Action.BLOCKED, "red"), "", one.reason]
        for one in planned.uncovered
    ]
    ui.table("plan", ["cell", "action", "build key", "reason"], rows)
    _warn_of_unproven(planned)


def _warn_of_unproven(planned: Planned) -> None:
    cells: dict[str, list[str]] = {}
    for one in planned.plans:
        for name in one.unproven:
            cells.setdefault(name, []).append(one.cell.name)
    for name, own in cells.items():
        ui.warn(f"unproven patch {name}: nothing shows what it does ({', '.join(own)})")


def result_of_plan(planned: Planned, *, json: bool) -> None:
    """Show a plan as the result of a command. Raises InputError if cells are not locked."""
    if json:
        ui.emit_json([row.as_dict() for row in planned.rows])
    else:
        plan(planned)
    if planned.error:
        raise planned.error


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
