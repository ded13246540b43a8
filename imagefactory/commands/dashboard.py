"""The ``dashboard`` command: the history of the nights as a static site."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from imagefactory.commands.options import HERE, File, Json, workspace_of
from imagefactory.dashboard import dashboard
from imagefactory.errors import CheckFailedError
from imagefactory.nightly import nightly, record
from imagefactory.system import ui

app = typer.Typer(add_completion=False)


@app.command("dashboard", epilog="Example: imagefactory dashboard -o site")
def dashboard_command(
    out: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Folder for the site.")
    ] = Path("dashboard"),
    file: File = HERE,
    json: Json = False,
) -> None:
    """Write a static site with all nights: cells, patches, what changed, sizes and times.

    It needs no server: open DIR/index.html. Nights that the site has already are kept. Exits 1 if
    the record of a night cannot be read; the site is written without it.
    """
    workspace = workspace_of(file)
    done = dashboard.write(
        out,
        nightly.folder_of(workspace) / record.FOLDER,
        workspace.project.name,
        datetime.now(UTC),
        settings=workspace.settings,
    )
    if json:
        rows = [problem.as_dict() for problem in done.problems]
        ui.emit_json({**asdict(done), "index": str(done.index), "problems": rows})
    else:
        ui.line(str(done.index))
        ui.say(f"nights: {done.nights}, cells: {done.cells}")
    if done.problems:
        raise CheckFailedError(done.problems)
