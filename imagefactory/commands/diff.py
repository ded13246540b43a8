"""The ``diff`` command: shows what an upgrade from one image to another changes."""

from __future__ import annotations

from typing import Annotated

import typer

from imagefactory import opening
from imagefactory.commands import tables
from imagefactory.commands.options import HERE, File, Json, check_images, workspace_of
from imagefactory.inspecting import anatomy, filetree, inspecting, rebuild
from imagefactory.planning.cell_plan import LABEL
from imagefactory.system import ui
from imagefactory.system.engine import Engine

EXAMPLE = (
    "Example: imagefactory diff imagefactory/vllm:gb10-vllm0.22.1 imagefactory/vllm:gb10-vllm0.33.0"
)

app = typer.Typer(add_completion=False)


@app.command("diff", epilog=EXAMPLE)
def diff_command(
    old: Annotated[str, typer.Argument(metavar="A", help="The old image.")],
    new: Annotated[str, typer.Argument(metavar="B", help="The new image.")],
    file: File = HERE,
    files: Annotated[
        bool, typer.Option("--files", help="Also compare file by file; reads both images in full.")
    ] = False,
    compressed: Annotated[
        bool,
        typer.Option(
            "--bytes", help="Also show the compressed bytes to transfer; reads both images in full."
        ),
    ] = False,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit 1 if they differ.")] = False,
    json: Json = False,
) -> None:
    """Show what an upgrade from image A to image B changes.

    Lists changed pins, packages, patches and settings, and the layers to transfer.
    """
    check_images(old, new)
    workspace = workspace_of(file)
    engine = opening.connect(workspace)
    found = anatomy.compare(
        inspecting.look(engine, old), inspecting.look(engine, new), pin_prefix=f"{LABEL}.pin."
    )
    changed = filetree.compare(*rebuild.trees(engine, (old, new))) if files and found.moved else []
    sent = None
    if compressed:
        sent = _compressed(engine, old, new) if found.moved else 0
    if json:
        ui.emit_json(
            {**found.as_dict(), "files": [one.as_dict() for one in changed], "bytes_sent": sent}
        )
    elif not found.changes and not found.moved:
        ui.say("the images are the same, layer by layer")
    else:
        rows = [[one.kind, one.name, one.old or "-", one.new or "-"] for one in found.changes]
        ui.table(f"{old} -> {new}", ["kind", "name", "old", "new"], rows)
        tables.layers("layers to transfer", found.moved)
        tables.files(changed)
        size = found.bytes_moved
        moved = "size unknown" if size is None else f"{ui.size(size)} unpacked"
        moved += "" if sent is None else f", {ui.size(sent)} compressed"
        ui.say(f"{len(found.shared)} layers are shared; {len(found.moved)} to transfer ({moved})")
    if exit_code and (found.changes or found.moved):
        raise typer.Exit(1)


def _compressed(engine: Engine, old: str, new: str) -> int:
    """Compressed bytes of the blobs that ``new`` has and ``old`` does not."""
    existing = engine.blobs(old)
    return sum(size for digest, size in engine.blobs(new).items() if digest not in existing)
