"""The ``doctor`` command: checks the machine."""

from __future__ import annotations

import os

import typer

from imagefactory import opening
from imagefactory.commands.options import HERE, File, Json, workspace_of
from imagefactory.errors import FactoryError
from imagefactory.matrix.matrix import Matrix
from imagefactory.system import ui
from imagefactory.upkeep import doctor
from imagefactory.upkeep.finding import Health
from imagefactory.workspace import Workspace

app = typer.Typer(add_completion=False)


@app.command("doctor", epilog="Example: imagefactory doctor --json")
def doctor_command(file: File = HERE, json: Json = False) -> None:
    """Check what this machine offers for building, and how to fix what it lacks.

    On a DGX Spark it also checks what decides how well models are served: driver, memory, clocks
    and network. Exits with 3 if the machine cannot build.
    """
    workspace = workspace_of(file)
    findings = doctor.examine(workspace.settings, os.environ, _declared(workspace))
    if json:
        ui.emit_json([finding.as_dict() for finding in findings])
    else:
        colour = {Health.GOOD: "green", Health.NOTE: "yellow", Health.BAD: "red"}
        rows: list[list[ui.Part]] = [
            [f.name, ui.styled(f.health, colour[f.health]), f.seen, f.remedy] for f in findings
        ]
        ui.table("doctor", ["check", "status", "found", "remedy"], rows)
    if any(finding.health is Health.BAD for finding in findings):
        raise typer.Exit(3)


def _declared(workspace: Workspace) -> Matrix | None:
    """The matrix, if there is one that can be read."""
    if not workspace.matrix.exists():
        return None
    try:
        return opening.declared(workspace)
    except FactoryError as error:
        ui.warn(f"not compared with the matrix: {error.problems[0].what}")
        return None
