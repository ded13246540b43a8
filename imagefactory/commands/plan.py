"""The ``plan`` command: shows what a build would do."""

from __future__ import annotations

from typing import Annotated

import typer

from imagefactory import pipeline
from imagefactory.commands import tables
from imagefactory.commands.options import (
    HERE,
    File,
    Json,
    Select,
    workspace_of,
)
from imagefactory.matrix import matrix
from imagefactory.matrix.explain import explain
from imagefactory.matrix.select import select as select_cells
from imagefactory.system import ui
from imagefactory.workspace import Workspace

app = typer.Typer(add_completion=False)


@app.command("plan", epilog="Example: imagefactory plan --select flavor=gb10 --json")
def plan_command(
    file: File = HERE,
    select: Select = None,
    explained: Annotated[
        str | None,
        typer.Option("--explain", metavar="CELL", help="Show where every value of a cell is set."),
    ] = None,
    json: Json = False,
) -> None:
    """List the cells, and what a build would do for each."""
    workspace = workspace_of(file)
    if explained:
        _explain(workspace, explained, json=json)
        return
    tables.result_of_plan(pipeline.plan(workspace, select or [], allow_uncovered=True), json=json)


def _explain(workspace: Workspace, name: str, *, json: bool) -> None:
    cells = select_cells(matrix.load(workspace.matrix).cells, [name])
    rows = [row for cell in cells for row in explain(cell)]
    columns = ["what", "value", "where", "section"]
    if json:
        ui.emit_json([dict(zip(columns, row, strict=True)) for row in rows])
    else:
        ui.table(name, columns, [list(row) for row in rows])
