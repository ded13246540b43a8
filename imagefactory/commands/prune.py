"""The command that makes room: prune."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from imagefactory import pipeline
from imagefactory.commands.options import HERE, File, Json, workspace_of
from imagefactory.errors import CheckFailedError
from imagefactory.system import ui
from imagefactory.upkeep import upkeep
from imagefactory.upkeep.prune import Item, Kind

app = typer.Typer(add_completion=False)


@app.command("prune", epilog="Example: imagefactory prune --dry-run")
def prune_command(
    file: File = HERE,
    everything: Annotated[
        bool,
        typer.Option(
            "--all", help="What the matrix has now, too: images, bases, downloaded sources."
        ),
    ] = False,
    cache: Annotated[
        bool, typer.Option("--cache", help="The build cache too; the next build is a cold one.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the plan; touch nothing.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json: Json = False,
) -> None:
    """Make room: show what can go and why, ask.

    And take away nothing that imagefactory did not make.
    """
    workspace = workspace_of(file)
    found, engine = pipeline.survey(workspace, everything=everything, build_cache=cache)
    items, kept = found.items, found.kept
    go = bool(items) and not dry_run and (yes or _asked(items, kept))
    failed, freed = upkeep.remove(items, engine) if go else ([], 0)
    if json:
        rows = [item.as_dict() for item in items]
        ui.emit_json(
            {
                "items": rows,
                "kept": [item.as_dict() for item in kept],
                "removed": go,
                "bytes_freed": freed,
            }
        )
    elif go:
        ui.say(f"{len(items) - len(failed)} things removed; {ui.size(freed)} more free on the disk")
    elif dry_run or not items:
        _show(items, kept)
    if failed:
        raise CheckFailedError(failed)


def _asked(items: Sequence[Item], kept: Sequence[Item]) -> bool:
    _show(items, kept)
    if not sys.stdin.isatty():
        ui.say("nothing was removed: say --yes to remove this without being asked")
        return False
    return typer.confirm("Remove all of this?")


def _show(items: Sequence[Item], kept: Sequence[Item]) -> None:
    # cache records have no names that tell anybody anything: one line for all
    for title, every in (("can go", items), ("stays", kept)):
        rows = [
            [i.kind, ui.escape(i.name), ui.size(i.size), ui.escape(i.why)]
            for i in every
            if i.kind is not Kind.CACHE
        ]
        records = [item for item in every if item.kind is Kind.CACHE]
        if records:
            total = ui.size(sum(item.size for item in records))
            rows.append([Kind.CACHE, f"{len(records)} records", total, records[0].why])
        if rows:
            ui.table(title, ["", "what", "bytes", "why"], rows)
    if not items:
        ui.say("there is nothing to remove")
