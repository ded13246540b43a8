"""The ``init`` command: starts a project."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from imagefactory.commands.options import Json
from imagefactory.examples import examples
from imagefactory.examples.examples import MATRIX, Example
from imagefactory.system import shell, ui

app = typer.Typer(add_completion=False)


@app.command("init", epilog="Example: imagefactory init --from cpu my-images")
def init_command(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder; created if needed.")
    ] = Path(),
    example: Annotated[
        Example, typer.Option("--from", help="The images to start with.")
    ] = Example.GB10,
    json: Json = False,
) -> None:
    """Start a project: a matrix, a folder for patches, nights and checks of pull requests.

    Nothing is overwritten.
    """
    done = examples.start(folder, example)
    for path in done.kept:
        ui.warn(f"{path} exists already and was kept")
    if json:
        ui.emit_json([str(path) for path in done.written])
        return
    for path in done.written:
        ui.line(str(path))
    if done.unfinished:
        named = " and ".join(map(str, done.unfinished))
        ui.say(f"put the address of imagefactory's repository into {named}, for GitHub")
    ui.say(f"edit {folder / MATRIX} if needed, then run:")
    steps = ["imagefactory lock", "imagefactory plan", "imagefactory build --matrix"]
    for step in [shell.show(["cd", str(folder)]), *steps] if folder != Path() else steps:
        ui.say(f"  {step}")
