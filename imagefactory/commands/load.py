"""The ``load`` command: loads images that ``save`` has written."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from imagefactory import transfers
from imagefactory.commands.options import HERE, File, Json, workspace_of
from imagefactory.system import ui

app = typer.Typer(add_completion=False)


@app.command("load", epilog="Example: imagefactory load /mnt/backup")
def load_command(
    source: Annotated[Path, typer.Argument(metavar="DIR|FILE.tar", help="An OCI layout.")],
    file: File = HERE,
    json: Json = False,
) -> None:
    """Load all images of an OCI layout into the engine, and keep their receipts.

    Every blob is compared with its digest first; if one is damaged, nothing is loaded.
    """
    rows = transfers.load(workspace_of(file), source)
    if json:
        ui.emit_json([row.as_dict() for row in rows])
        return
    shown = [
        [row.reference, row.digest[:19], row.state, "kept" if row.receipt else "none"]
        for row in rows
    ]
    ui.table("", ["image", "digest", "", "receipt"], shown)
