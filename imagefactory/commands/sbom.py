"""The ``sbom`` command: lists what an image is made of."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from imagefactory import workflows
from imagefactory.commands.options import HERE, File, workspace_of
from imagefactory.system import files

app = typer.Typer(add_completion=False)


@app.command("sbom", epilog="Example: imagefactory sbom ghcr.io/me/vllm:nightly -o vllm.cdx.json")
def sbom_command(
    image: Annotated[
        str, typer.Argument(metavar="CELL|TAG", help="A cell of the matrix, or a pushed image.")
    ],
    out: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write it to a file.")
    ] = None,
    file: File = HERE,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, as always.")] = False,  # noqa: ARG001
) -> None:
    """Print the SBOM of an image as CycloneDX 1.6 JSON.

    For a cell it is made from the lock, without an engine. For a pushed image it is the one that is
    attached to it.
    """
    text = workflows.sbom(workspace_of(file), image).decode()
    if out:
        files.write_text(out, text)
    else:
        sys.stdout.write(f"{text}\n")
