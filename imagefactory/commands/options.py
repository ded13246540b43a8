"""What the command modules share: options, and how a command comes to its matrix and its engine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from imagefactory.errors import SetupError
from imagefactory.settings import Settings, from_environment
from imagefactory.system import ui
from imagefactory.system.engine import Engine
from imagefactory.workspace import Row, Workspace

HERE = Path("matrix.yaml")
File = Annotated[
    Path,
    typer.Option("--file", "-f", help="Matrix file; lock, patches and templates are beside it."),
]
Select = Annotated[
    list[str] | None,
    typer.Option(
        "--select",
        "-s",
        help="Cells: a name glob, or axis=value terms: 'flavor=gb10 vllm=0.3*'. Repeat for OR.",
    ),
]
BuilderName = Annotated[
    str | None,
    typer.Option(
        "--builder", metavar="NAME", envvar="BUILDX_BUILDER", help="Build on this buildx builder."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="JSON on standard output, for programs.")]


def settings_of(file: Path) -> Settings:
    return from_environment(os.environ, file.resolve().parent)


def workspace_of(file: Path) -> Workspace:
    return Workspace(file, settings_of(file))


def engine_of(settings: Settings) -> Engine:
    return Engine.connect(os.environ, settings.state)


def engine_if_any(settings: Settings) -> Engine | None:
    try:
        return engine_of(settings)
    except SetupError:
        return None


def show_plan(rows: list[Row]) -> None:
    colour = {"build": "yellow", "skip": "green"}
    ui.table(
        "plan",
        ["cell", "platform", "action", "build key", "why"],
        [
            [
                f"[bold]{row.plan.cell.name}[/bold]\n[dim]{row.plan.cell.tag}[/dim]",
                row.plan.cell.platform,
                f"[{colour[row.action]}]{row.action}[/]",
                row.plan.build_key[:12],
                ui.escape(row.reason),
            ]
            for row in rows
        ],
    )
