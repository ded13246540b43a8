"""The ``doctor`` command: checks the machine."""

from __future__ import annotations

import os

import typer

from imagefactory.commands.options import HERE, File, Json, workspace_of
from imagefactory.system import ui
from imagefactory.upkeep import doctor

app = typer.Typer(add_completion=False)


@app.command("doctor", epilog="Example: imagefactory doctor --json")
def doctor_command(file: File = HERE, json: Json = False) -> None:
    """Check what this machine offers for building, and how to fix what it lacks.

    Exits with 3 if the machine cannot build.
    """
    findings = doctor.examine(workspace_of(file).settings, os.environ)
    if json:
        ui.emit_json([finding.as_dict() for finding in findings])
    else:
        colour = {
            doctor.Health.GOOD: "green",
            doctor.Health.NOTE: "yellow",
            doctor.Health.BAD: "red",
        }
        rows: list[list[ui.Part]] = [
            [f.name, ui.styled(f.health, colour[f.health]), f.seen, f.remedy] for f in findings
        ]
        ui.table("doctor", ["check", "status", "found", "remedy"], rows)
    if any(finding.health is doctor.Health.BAD for finding in findings):
        raise typer.Exit(3)
