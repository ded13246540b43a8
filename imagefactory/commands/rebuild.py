"""The command that builds an image once more, to see whether it is the same."""

from __future__ import annotations

from typing import Annotated

import typer

from imagefactory import pipeline
from imagefactory.commands import tables
from imagefactory.commands.options import HERE, File, Json, workspace_of
from imagefactory.inspecting import rebuild
from imagefactory.system import ui

app = typer.Typer(add_completion=False)


@app.command(
    "rebuild", epilog="Example: imagefactory rebuild --diff imagefactory/vllm:cpu-vllm0.32.0"
)
def rebuild_command(
    tag: Annotated[str, typer.Argument(metavar="TAG", help="An image in the engine.")],
    file: File = HERE,
    diff: Annotated[
        bool, typer.Option("--diff", help="If it differs, show what: file by file.")
    ] = False,
    with_base: Annotated[
        bool,
        typer.Option(
            "--with-base",
            help="Install the base's packages again too; the distribution's archive moves.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Build an image once more from nothing, and hold it against the one that is there.

    Exit 1 if it is another.
    """
    done = pipeline.rebuild(workspace_of(file), tag, with_base=with_base, files=diff)
    if json:
        ui.emit_json(done.as_dict())
    elif done.same:
        ui.out.print(f"[green]the same[/green]: built again, {tag} is {done.new}")
    else:
        _show_rebuilt(done)
    if not done.same:
        raise typer.Exit(1)


def _show_rebuilt(done: rebuild.Rebuilt) -> None:
    ui.out.print(f"[red]different[/red]: {done.tag} is {done.old}, built again it is {done.new}")
    rows = [[str(place), old[:19], new[:19]] for place, old, new in done.layers]
    ui.table("layers that differ", ["place", "there", "built again"], rows)
    if not done.layers:
        ui.say(
            "all layers are equal: the difference is in the image's settings or "
            "its manifest (imagefactory diff)"
        )
    tables.files(done.files or ())
    if done.fingerprints:
        same = done.fingerprints[0] == done.fingerprints[1]
        ui.say(
            f"contents without dates are {'the same' if same else 'different'}: "
            f"{' and '.join(done.fingerprints)}"
        )
