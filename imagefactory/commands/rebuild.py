"""The ``rebuild`` command: rebuilds an image, to check whether the result is the same."""

from __future__ import annotations

from typing import Annotated

import typer

from imagefactory import workflows
from imagefactory.commands import tables
from imagefactory.commands.options import HERE, File, Json, check_images, workspace_of
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
        bool, typer.Option("--diff", help="If the images differ, compare them file by file.")
    ] = False,
    with_base: Annotated[
        bool,
        typer.Option(
            "--with-base",
            help="Also reinstall the base's packages, which may have been updated since.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Rebuild an image without cache, and compare the result with it.

    Exits with 1 if they differ.
    """
    check_images(tag)
    done = workflows.rebuild(workspace_of(file), tag, with_base=with_base, files=diff)
    if json:
        ui.emit_json(done.as_dict())
    elif done.same:
        ui.line(ui.styled("the same", "green"), f": rebuilt, {tag} is {done.new}")
    else:
        _show_rebuilt(done)
    if not done.same:
        raise typer.Exit(1)


def _show_rebuilt(done: rebuild.Rebuilt) -> None:
    ui.line(ui.styled("different", "red"), f": {done.tag} is {done.old}, rebuilt it is {done.new}")
    rows = [[str(index), old[:19], new[:19]] for index, old, new in done.layers]
    ui.table("layers that differ", ["layer", "original", "rebuilt"], rows)
    if not done.layers:
        ui.say("all layers are the same: only the image's settings differ (imagefactory diff)")
    tables.files(done.files or ())
    if done.fingerprints:
        same = done.fingerprints[0] == done.fingerprints[1]
        verdict = "the same" if same else "different"
        ui.say(f"contents without dates are {verdict}: {' and '.join(done.fingerprints)}")
