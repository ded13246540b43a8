"""The ``export`` command: writes the wheels of a cell in a format that other tools read."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from imagefactory import workflows
from imagefactory.commands.options import HERE, File, workspace_of
from imagefactory.system import ui

app = typer.Typer(add_completion=False)


@app.command("export", epilog="Example: imagefactory export 'cpu-*' -o pylock.toml")
def export_command(
    cell: Annotated[
        str, typer.Argument(metavar="CELL", help="Cell, by name or any EXPR of --select.")
    ],
    file: File = HERE,
    out: Annotated[
        Path | None,
        typer.Option(
            "--output-file",
            "-o",
            metavar="FILE",
            help="File to write, pylock.toml or pylock.NAME.toml; standard output without it.",
        ),
    ] = None,
) -> None:
    """Write the locked wheels of a cell as pylock.toml (PEP 751)."""
    exported = workflows.export(workspace_of(file), cell, out)
    if out is None:
        sys.stdout.write(exported.text)
    else:
        out.write_text(exported.text, encoding="utf-8")
        ui.say(f"wrote {out}: {exported.wheels} wheels of {exported.cell}")
