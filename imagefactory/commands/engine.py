"""The ``engine`` command: starts and stops a private container engine."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import Annotated

import typer

from imagefactory import stock

app = typer.Typer(add_completion=False)
SCRIPT = stock.ROOT / "scripts" / "engine"


class Action(StrEnum):
    """What to do with the engine; ``scripts/engine`` does it."""

    UP = "up"
    DOWN = "down"
    STATUS = "status"
    ENV = "env"
    PURGE = "purge"


@app.command(
    "engine", epilog='Example: imagefactory engine up && eval "$(imagefactory engine env)"'
)
def engine_command(
    action: Annotated[
        Action,
        typer.Argument(
            help="up: use a running Docker, else start a private one. down: stop that. "
            "status: show which one is running. env: print its shell variables. "
            "purge: stop it and delete its images and caches."
        ),
    ],
) -> None:
    """Start or stop a private container engine, for machines without Docker."""
    environ = {**os.environ, "IMAGEFACTORY_ENGINE_COMMAND": "imagefactory engine"}
    # replaces this process, so that the script has its terminal, signals and exit code
    os.execvpe("bash", ["bash", str(SCRIPT), action.value], environ)  # noqa: S606, S607
