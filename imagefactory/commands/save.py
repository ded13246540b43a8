"""The ``save`` command: writes verified images to a folder or a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from imagefactory import transfers
from imagefactory.commands.options import HERE, File, Json, Select, check_images, workspace_of
from imagefactory.system import ui

app = typer.Typer(add_completion=False)


@app.command("save", epilog="Example: imagefactory save /mnt/backup imagefactory/vllm:gb10")
def save_command(
    target: Annotated[
        Path, typer.Argument(metavar="DIR|FILE.tar", help="The OCI layout; a folder is added to.")
    ],
    images: Annotated[
        list[str] | None, typer.Argument(metavar="TAG", help="Images of the engine.")
    ] = None,
    select: Select = None,
    file: File = HERE,
    json: Json = False,
) -> None:
    """Save verified images, with receipts and SBOMs, as an OCI layout.

    What they share is written once. A folder that is there gets only what it lacks.
    """
    check_images(*(images or []))
    saved = transfers.save(workspace_of(file), target, images or [], select or [])
    rows = [{"reference": one.ref, "digest": one.digest, "bytes": one.size} for one in saved]
    if json:
        ui.emit_json(rows)
    else:
        ui.table("", ["image", "digest"], [[one.ref, one.digest[:19]] for one in saved])
