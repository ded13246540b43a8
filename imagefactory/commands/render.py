"""The ``render`` command: prints Dockerfiles, or writes the input of Buildx."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from imagefactory import workflows
from imagefactory.commands.options import HERE, File, Select, workspace_of
from imagefactory.system import ui

app = typer.Typer(add_completion=False)


@app.command("render", epilog="Example: imagefactory render --select flavor=cpu --out out/")
def render_command(
    file: File = HERE,
    select: Select = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder to write build contexts and the bake file to."),
    ] = None,
) -> None:
    """Print the Dockerfiles of the selected cells, or write everything that Buildx needs."""
    rendered = workflows.render(workspace_of(file), select or [], out.resolve() if out else None)
    if rendered.bakefile is None:
        for plan in rendered.plans:
            sys.stdout.write(plan.dockerfile)
        return
    path = rendered.bakefile
    ui.say(f"wrote {path}; build it with: docker buildx bake -f {path}")
