"""Options that several commands have."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from imagefactory import workspace
from imagefactory.workspace import Workspace

HERE = Path("matrix.yaml")
File = Annotated[
    Path,
    typer.Option("--file", "-f", help="Matrix file; lock, patches and templates are next to it."),
]
Select = Annotated[
    list[str] | None,
    typer.Option(
        "--select",
        "-s",
        metavar="EXPR",
        help="Cells by name glob or axis=value, with and, or, not: 'flavor=gb10 and vllm=0.3*'. "
        "Repeat for OR.",
    ),
]
BuilderName = Annotated[
    str | None,
    typer.Option(
        "--builder",
        metavar="NAME",
        envvar="BUILDX_BUILDER",
        help="Buildx builder to build on.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def workspace_of(file: Path) -> Workspace:
    """The workspace of the matrix file that is given on the command line."""
    return workspace.find(file, os.environ)
