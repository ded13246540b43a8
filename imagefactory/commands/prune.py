"""The ``prune`` command: frees disk space."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from imagefactory import workflows
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
            "--all", help="Also remove images that are up to date, bases and downloaded sources."
        ),
    ] = False,
    cache: Annotated[
        bool, typer.Option("--cache", help="Also clear the build cache; the next build is slow.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the plan; remove nothing.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json: Json = False,
) -> None:
    """Free disk space: show what can be removed and why, then ask.

    Only what imagefactory made is removed.
    """
    workspace = workspace_of(file)
    found, engine = workflows.survey(workspace, everything=everything, build_cache=cache)
    items, kept = found.items, found.kept
    confirmed = bool(items) and not dry_run and (yes or _confirm(items, kept))
    failed, freed = upkeep.remove(items, engine) if confirmed else ([], 0)
    if json:
        rows = [item.as_dict() for item in items]
        ui.emit_json(
            {
                "items": rows,
                "kept": [item.as_dict() for item in kept],
                "removed": confirmed,
                "bytes_freed": freed,
            }
        )
    elif confirmed:
        ui.say(f"removed {len(items) - len(failed)} items, freed {ui.size(freed)} on the disk")
    elif dry_run or not items:
        _show(items, kept)
    if failed:
        raise CheckFailedError(failed)


def _confirm(items: Sequence[Item], kept: Sequence[Item]) -> bool:
    _show(items, kept)
    if not sys.stdin.isatty():
        ui.say("nothing was removed: use --yes to remove this without confirmation")
        return False
    return typer.confirm("Remove all of this?")


def _show(items: Sequence[Item], kept: Sequence[Item]) -> None:
    # cache records have no meaningful names: one line for all
    for title, group in (("to remove", items), ("kept", kept)):
        rows = [
            [item.kind, item.name, ui.size(item.size), item.why]
            for item in group
            if item.kind is not Kind.CACHE
        ]
        records = [item for item in group if item.kind is Kind.CACHE]
        if records:
            total = ui.size(sum(item.size for item in records))
            rows.append([Kind.CACHE, f"{len(records)} records", total, records[0].why])
        if rows:
            ui.table(title, ["kind", "name", "size", "reason"], rows)
    if not items:
        ui.say("nothing to remove")
