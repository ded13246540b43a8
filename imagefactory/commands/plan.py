"""The command that tells what a build would do."""

from __future__ import annotations

from typing import Annotated

import typer

from imagefactory.commands.options import (
    HERE,
    File,
    Json,
    Select,
    engine_if_any,
    show_plan,
    workspace_of,
)
from imagefactory.matrix.explain import explain
from imagefactory.system import ui
from imagefactory.workspace import Workspace, decide

app = typer.Typer(add_completion=False)


@app.command("plan", epilog="Example: imagefactory plan --select flavor=gb10 --json")
def plan_command(
    file: File = HERE,
    select: Select = None,
    explained: Annotated[
        str | None,
        typer.Option(
            "--explain", metavar="CELL", help="Show where every value of one cell comes from."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """List the cells, and what a build would do for each."""
    workspace = workspace_of(file)
    if explained:
        _explain(workspace, explained, json=json)
        return
    engine = engine_if_any(workspace.settings)
    cells = workspace.cells(select or [])
    plans = workspace.plans(cells, workspace.look(cells, engine))
    rows = decide(plans, engine.find_images(cell.tag for cell in cells) if engine else None)
    if json:
        ui.emit_json([row.as_dict() for row in rows])
    else:
        show_plan(rows)


def _explain(workspace: Workspace, name: str, *, json: bool) -> None:
    rows = [row for cell in workspace.cells([name]) for row in explain(cell)]
    if json:
        ui.emit_json(
            [dict(zip(("what", "value", "where", "section"), row, strict=True)) for row in rows]
        )
    else:
        ui.table(
            name,
            ["what", "value", "where", "section"],
            [[ui.escape(text) for text in row] for row in rows],
        )
