"""The command that shows, or writes, what Buildx reads."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from imagefactory.commands.options import HERE, File, Select, engine_if_any, workspace_of
from imagefactory.system import ui

app = typer.Typer(add_completion=False)


@app.command("render", epilog="Example: imagefactory render --select flavor=cpu --out out/")
def render_command(
    file: File = HERE,
    select: Select = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Write build contexts and the bake file here."),
    ] = None,
) -> None:
    """Print the Dockerfiles of the selected cells, or write all that Buildx reads."""
    workspace = workspace_of(file)
    engine = engine_if_any(workspace.settings)
    cells = workspace.cells(select or [])
    found = workspace.look_everywhere(cells, engine)
    plans = workspace.plans(cells, found)
    if out is None:
        for plan in plans:
            sys.stdout.write(plan.dockerfile)
        return
    path = workspace.write_bake(
        out.resolve(), plans, found, engine.platform if engine else cells[0].platform
    )
    ui.say(f"wrote {path}; build it with: docker buildx bake -f {path}")
