"""The ``push`` command: pushes verified images."""

from __future__ import annotations

from typing import Annotated

import typer

from imagefactory import pipeline
from imagefactory.commands.options import HERE, File, Json, Select, workspace_of
from imagefactory.publishing.publishing import NotPushed, Pushed
from imagefactory.system import ui

app = typer.Typer(add_completion=False)


@app.command("push", epilog="Example: imagefactory push --select flavor=gb10 --to ghcr.io/me/vllm")
def push_command(
    file: File = HERE,
    select: Select = None,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="REPO", help="Push to this repository, not the matrix's own."),
    ] = None,
    json: Json = False,
) -> None:
    """Push images by digest, if the last verification of that digest passed.

    Each gets an immutable tag, then those of its cell; promote gives it a moving one.
    """
    done = pipeline.push(workspace_of(file), select or [], to)
    if json:
        ui.emit_json([row.as_dict() for row in done.rows])
    else:
        ui.table("push", ["cell", "reference", "digest", "blobs"], [_row(one) for one in done.rows])
    if done.error:
        raise done.error


def _row(one: Pushed | NotPushed) -> list[ui.Part]:
    if isinstance(one, NotPushed):
        return [one.cell, one.reference, ui.styled("not pushed", "red"), one.problems[0].code]
    blobs = "not counted"
    if one.blobs_sent is not None:
        blobs = f"{one.blobs_sent} sent, {one.blobs_there} already there"
    return [one.cell, one.reference, one.digest[:19], blobs]
