"""The ``imagefactory patch`` commands."""

from __future__ import annotations

import typer

from imagefactory.commands import patch_measure, patch_write

app = typer.Typer(
    name="patch",
    add_completion=False,
    no_args_is_help=True,
    help="Measure, port, create and import patches.",
)
app.add_typer(patch_measure.app)
app.add_typer(patch_write.app)
