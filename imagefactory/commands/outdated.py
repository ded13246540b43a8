"""The ``outdated`` command: shows what is newer upstream, and takes it over into the matrix."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated

import typer

from imagefactory.commands.options import HERE, File, Json, workspace_of
from imagefactory.locking import store
from imagefactory.matrix import matrix
from imagefactory.system import ui
from imagefactory.watching import watching
from imagefactory.watching.rows import Row, State
from imagefactory.watching.watching import Report

COLUMNS = ("package", "current", "compatible", "newest", "held back by")
COLOURS = {State.OUTDATED: "yellow", State.YANKED: "red", State.UNKNOWN: "red"}

app = typer.Typer(add_completion=False)


@app.command("outdated", epilog="Example: imagefactory outdated --update && imagefactory lock")
def outdated_command(
    file: File = HERE,
    every: Annotated[
        bool,
        typer.Option("--all", "-a", help="Look up every wheel; show what is up to date, too."),
    ] = False,
    update: Annotated[
        bool,
        typer.Option(
            "--update",
            help="Write the proposed rows into the matrix; comments and layout stay as they are.",
        ),
    ] = False,
    exit_code: Annotated[
        bool,
        typer.Option(
            "--exit-code", help="Exit 1 if something could be upgraded or needs attention."
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Show what is newer than the matrix and the lock, and why it is held back.

    Only pages and metadata of indexes are read. `follow` and `hold` in the matrix say what counts.
    """
    workspace = workspace_of(file)
    declared = matrix.load(workspace.matrix)
    settings = replace(workspace.settings, named=declared.indexes)
    with ui.step("looking up what is newer"):
        lock, now = store.read(workspace.lock), datetime.now(UTC)
        report = watching.outdated(declared, lock, settings, now, every=every)
    writes = update and bool(report.candidates)
    if writes:
        watching.update(declared, report.candidates)
    if json:
        ui.emit_json(_as_dict(report, written=writes))
    else:
        _show(report, every=every, written=writes)
    if writes:
        ui.say(f"{workspace.matrix} is written; next: imagefactory lock")
    if report.outage:
        raise report.outage
    if exit_code and report.needs_attention:
        raise typer.Exit(1)


def _as_dict(report: Report, *, written: bool) -> dict[str, object]:
    return {
        "rows": [row.as_dict() for row in report.rows],
        "candidates": [candidate.as_dict() for candidate in report.candidates],
        "warnings": [problem.as_dict() for problem in report.warnings],
        "written": written,
    }


def _show(report: Report, *, every: bool, written: bool) -> None:
    shown = [row for row in report.rows if every or row.state is not State.CURRENT]
    for part in dict.fromkeys(row.part for row in shown):
        _table(part, (row for row in shown if row.part == part))
    if report.candidates:
        title = "changed rows" if written else "rows to change (--update writes them)"
        changes = [[one.row.where, one.kind, one.changes] for one in report.candidates]
        ui.table(title, ["where", "what", "change"], changes)
    for problem in report.warnings:
        ui.warn(f"{problem.where}: {problem.what}")
    counts = {state: sum(row.state is state for row in report.rows) for state in State}
    ui.say(", ".join(f"{count} {state}" for state, count in counts.items() if count))


def _table(part: str, rows: Iterable[Row]) -> None:
    body: list[list[ui.Part]] = [
        [
            row.name,
            row.current,
            ui.styled(row.compatible or "-", COLOURS.get(row.state, "")),
            row.newest or "-",
            f"unknown: {row.reason}" if row.state is State.UNKNOWN else row.reason,
        ]
        for row in rows
    ]
    ui.table(part, COLUMNS, body)
