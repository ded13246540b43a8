"""The command that tells what an upgrade changes."""

from __future__ import annotations

from typing import Annotated

import typer

from imagefactory import opening
from imagefactory.commands import tables
from imagefactory.commands.options import HERE, File, Json, workspace_of
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
    old: Annotated[str, typer.Argument(metavar="A", help="The image that one has.")],
    new: Annotated[str, typer.Argument(metavar="B", help="The image that one may get.")],
    file: File = HERE,
    files: Annotated[
        bool, typer.Option("--files", help="File by file too; reads both images whole.")
    ] = False,
    sent: Annotated[
        bool,
        typer.Option(
            "--bytes", help="What would move as compressed bytes too; reads both images whole."
        ),
    ] = False,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit 1 if anything is different.")
    ] = False,
    json: Json = False,
) -> None:
    """What an upgrade from A to B changes.

    Pins, packages, patches, settings, files, and what would move.
    """
    workspace = workspace_of(file)
    engine = opening.connect(workspace)
    found = anatomy.compare(
        inspecting.look(engine, old), inspecting.look(engine, new), pin_prefix=f"{LABEL}.pin."
    )
    changed = filetree.compare(*rebuild.trees(engine, (old, new))) if files and found.moved else []
    blobs = _blobs(engine, old, new) if sent and found.moved else 0 if sent else None
    if json:
        ui.emit_json(
            {**found.as_dict(), "files": [one.as_dict() for one in changed], "bytes_sent": blobs}
        )
    elif not found.changes and not found.moved:
        ui.say("the same, layer by layer")
    else:
        rows = [
            [one.kind, one.name, ui.escape(one.old) or "-", ui.escape(one.new) or "-"]
            for one in found.changes
        ]
        ui.table(f"{old} -> {new}", ["", "what", "old", "new"], rows)
        tables.layers("layers that would move", found.moved)
        tables.files(changed)
        compressed = "" if blobs is None else f", {ui.size(blobs)} compressed"
        ui.say(
            f"{len(found.shared)} layers are shared; {ui.size(found.bytes_moved)} "
            f"(unpacked{compressed}) would move"
        )
    if exit_code and (found.changes or found.moved):
        raise typer.Exit(1)


def _blobs(engine: Engine, old: str, new: str) -> int:
    """Compressed bytes of what ``new`` has and ``old`` has not."""
    had = engine.blobs(old)
    return sum(size for digest, size in engine.blobs(new).items() if digest not in had)
