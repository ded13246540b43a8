"""The ``rollback`` command: moves a tag back to an image that it named before."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from imagefactory import workflows
from imagefactory.commands import tables
from imagefactory.commands.options import HERE, File, Json, Repository, workspace_of

app = typer.Typer(add_completion=False)


@app.command("rollback", epilog="Example: imagefactory rollback nightly --to 2")
def rollback_command(
    tag: Annotated[str, typer.Argument(metavar="TAG", help="A moving tag of the matrix.")],
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="DIGEST|N",
            help="A digest, or a number of imagefactory history; by default the image before.",
        ),
    ] = None,
    file: File = HERE,
    repository: Repository = None,
    json: Json = False,
) -> None:
    """Point a moving tag back at an image that it named before, by digest.

    Nothing is built or sent, and the matrix need not describe the image any more.
    """
    done = workflows.rollback(workspace_of(file), tag, to, repository, datetime.now(UTC))
    tables.moved(done, json=json)
