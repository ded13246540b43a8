"""The ``plan`` command: shows what a build would do."""

from __future__ import annotations

from typing import Annotated

import typer

from imagefactory import audits, opening
from imagefactory.auditing.auditing import State
from imagefactory.commands import tables
from imagefactory.commands.options import (
    HERE,
    File,
    Json,
    Select,
    workspace_of,
)
from imagefactory.matrix.explain import explain
from imagefactory.matrix.select import select as select_cells
from imagefactory.patching import catalog
from imagefactory.patching.patch import Origin
from imagefactory.system import ui
from imagefactory.workspace import Workspace

app = typer.Typer(add_completion=False)


@app.command("plan", epilog="Example: imagefactory plan --select flavor=gb10 --json")
def plan_command(
    file: File = HERE,
    select: Select = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Only check that matrix, lock, patches and known audits agree; needs no engine.",
        ),
    ] = False,
    explained: Annotated[
        str | None,
        typer.Option("--explain", metavar="CELL", help="Show where every value of a cell is set."),
    ] = None,
    json: Json = False,
) -> None:
    """List the cells, what a build would do for each, and what earlier audits found.

    Exits with 1 if one of these found a cell bad. Nothing is fetched.
    """
    workspace = workspace_of(file)
    if explained:
        _explain(workspace, explained, json=json)
        return
    if check:
        _check(workspace, select or [], json=json)
        return
    tables.result_of_plan(audits.plan(workspace, select or []), json=json)


def _check(workspace: Workspace, select: list[str], *, json: bool) -> None:
    audited = audits.check(workspace, select)
    if json:
        ui.emit_json({"cells": [*audited], "audits": audited})
        return
    noun = "cell" if len(audited) == 1 else "cells"
    left = sum(state is State.UNKNOWN for state in audited.values())
    more = f"; {left} not audited: imagefactory audit" if left else ", and the audits are good"
    ui.say(f"{len(audited)} {noun}: matrix, lock and patches agree{more}")


def _explain(workspace: Workspace, name: str, *, json: bool) -> None:
    cells = select_cells(opening.declared(workspace).cells, [name])
    rows = [row for cell in cells for row in explain(cell)]
    rows += _own_files(workspace, {patch for cell in cells for patch in cell.flavor.patches})
    columns = ["what", "value", "where", "section"]
    if json:
        ui.emit_json([dict(zip(columns, row, strict=True)) for row in rows])
    else:
        ui.table(name, columns, [list(row) for row in rows])


def _own_files(workspace: Workspace, patches: set[str]) -> list[tuple[str, str, str, str]]:
    """Rows for the patches and templates that are the project's own."""
    found = catalog.files(*workspace.patches)
    rows = [
        ("patch file", name, str(file.relative_to(workspace.project)), origin.value)
        for name, (file, origin) in found.items()
        if name in patches and origin is not Origin.STOCK
    ]
    own, *stock = workspace.templates
    names = sorted(file.name for file in own.glob("*")) if stock else []
    replaced = {file.name for folder in stock for file in folder.glob("*")}
    origins = [Origin.REPLACES_STOCK if name in replaced else Origin.PROJECT for name in names]
    return rows + [
        ("template", name, f"{own.name}/{name}", origin.value)
        for name, origin in zip(names, origins, strict=True)
    ]
