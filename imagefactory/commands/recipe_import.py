"""The command ``imagefactory recipe import``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from imagefactory.commands.options import HERE, File, Json, workspace_of
from imagefactory.errors import InputError, fail
from imagefactory.recipes import importing, recipes
from imagefactory.recipes.importing import Imported
from imagefactory.recipes.recipes import SUFFIX
from imagefactory.system import files, temporary, ui

app = typer.Typer(add_completion=False)


@app.command("import", epilog="Example: imagefactory recipe import glm-4.7-flash-awq.yaml")
def import_command(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="A recipe of vllm-project/recipes, sparkrun or spark-vllm-docker."
        ),
    ],
    file: File = HERE,
    name: Annotated[
        str | None, typer.Option("--name", help="Its name here; by default the file's.")
    ] = None,
    variant: Annotated[
        str | None,
        typer.Option("--variant", help="Of vllm-project's: by default nvfp4, if there is one."),
    ] = None,
    vllm: Annotated[
        str | None, typer.Option(metavar="RANGE", help="Releases that it is for, as '>=0.22'.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--replace", help="Write over an own recipe of that name.")
    ] = False,
    json: Json = False,
) -> None:
    """Take over a recipe of another project into the folder recipes, and say what was left out.

    How the weights are stored, and whether it is a mixture of experts, is what the model's name
    says: look it over, and run recipe check.
    """
    found = importing.read(source, variant=variant, vllm=vllm, name=name)
    target = workspace_of(file).project / "recipes" / f"{found.name}{SUFFIX}"
    if target.exists() and not overwrite:
        what, fix = f"{target} exists already", "choose another --name, or --replace it"
        raise fail(InputError, "recipe-exists", what, fix=fix)
    _check(found, source)
    target.parent.mkdir(parents=True, exist_ok=True)
    files.write_text(target, found.text)
    if json:
        written = {"written": str(target), "kind": found.kind, "dropped": list(found.dropped)}
        ui.emit_json(written)
        return
    ui.line(str(target))
    for one in found.dropped:
        ui.warn(f"not taken over: {one}")
    ui.say(f"look it over, then run: imagefactory recipe check {found.name}")


def _check(found: Imported, source: Path) -> None:
    """Raise InputError for what is no recipe here; nothing of it is kept then."""
    with temporary.folder(prefix="imagefactory-recipe-") as folder:
        draft = folder / f"{found.name}{SUFFIX}"
        draft.write_text(found.text, encoding="utf-8")
        try:
            recipes.read(draft)
        except InputError as error:
            raise InputError(replace(one, where=str(source)) for one in error.problems) from None
