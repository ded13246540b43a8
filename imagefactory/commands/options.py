"""Options that several commands have."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

import typer

from imagefactory import workspace
from imagefactory.errors import InputError, fail
from imagefactory.system import reference
from imagefactory.workspace import Workspace

#: What no program that gets it can take for an option.
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*")
_BUILDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
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


def _builders(names: str | None) -> str | None:
    builders_of(names)
    return names


def builders_of(names: str | None) -> tuple[str, ...]:
    """The builders that ``--builder`` names. Raises InputError for what is no name."""
    found = names.split(",") if names else []
    for name in found:
        if not _BUILDER.fullmatch(name):
            what = f"{name!r} is not the name of a builder"
            fix = "docker buildx ls lists them; several are separated by commas, without spaces"
            raise fail(InputError, "builder-name", what, fix=fix)
    return tuple(found)


BuilderNames = Annotated[
    str | None,
    typer.Option(
        "--builder",
        metavar="NAME[,NAME]",
        envvar=["IMAGEFACTORY_BUILDERS", "BUILDX_BUILDER"],
        help="Buildx builders to build on.",
        callback=_builders,
    ),
]
Repository = Annotated[
    str | None,
    typer.Option(
        "--repository", "-r", metavar="REPO", help="Another repository than the matrix's own."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def check_images(*names: str) -> None:
    """Check images that are named on the command line. Raises InputError for the others."""
    for name in names:
        if not _IMAGE.fullmatch(name):
            what, fix = f"{name!r} is not the name of an image", "write [HOST/]REPOSITORY:TAG"
            raise fail(InputError, "image-name", what, fix=fix)
        reference.parse(name)


def workspace_of(file: Path) -> Workspace:
    """The workspace of the matrix file that is given on the command line.

    A folder may have patches and recipes without a matrix. Raises InputError if there is neither
    the file nor a folder that it could be in: what is next to it would be missing without a word.
    """
    may_come = file.name == HERE.name and os.path.isdir(file.parent)  # noqa: PTH112 - never fails
    if not may_come and not os.path.isfile(file):  # noqa: PTH113 - as above
        fix = "run in the project's folder, or name the file"
        raise fail(InputError, "matrix-missing", f"there is no file {file}", fix=fix)
    return workspace.find(file, os.environ)
