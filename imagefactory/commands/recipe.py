"""The ``imagefactory recipe`` commands."""

from __future__ import annotations

import typer

from imagefactory.commands import recipe_check, recipe_import, recipe_run

app = typer.Typer(
    name="recipe",
    add_completion=False,
    no_args_is_help=True,
    help="List, check and run recipes: how models are served.",
)
app.add_typer(recipe_check.app)
app.add_typer(recipe_run.app)
app.add_typer(recipe_import.app)
