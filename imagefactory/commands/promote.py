"""The ``promote`` command: moves a tag to a verified image."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from imagefactory import workflows
from imagefactory.commands import tables
from imagefactory.commands.options import HERE, File, Json, Repository, workspace_of

app = typer.Typer(add_completion=False)


@app.command(
    "promote", epilog="Example: imagefactory promote CELL nightly --repository ghcr.io/me/vllm"
)
def promote_command(
    image: Annotated[
        str,
        typer.Argument(metavar="REF|CELL", help="A cell of the matrix, a reference or a digest."),
    ],
    tag: Annotated[str, typer.Argument(metavar="TAG", help="A moving tag of the matrix.")],
    file: File = HERE,
    repository: Repository = None,
    json: Json = False,
) -> None:
    """Point a moving tag at an image in the registry that a receipt vouches for.

    One request moves it; no layer is sent. What was cut off is finished by the same command.
    """
    done = workflows.promote(workspace_of(file), image, tag, repository, datetime.now(UTC))
    tables.moved(done, json=json)
