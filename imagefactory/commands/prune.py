"""The ``prune`` command: frees disk space, of this machine or in a registry."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from imagefactory import workflows
from imagefactory.commands.options import HERE, File, Json, Repository, workspace_of
from imagefactory.errors import CheckFailedError, InputError, Problem, fail
from imagefactory.publishing import pins, retention
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
    registry: Annotated[
        bool, typer.Option("--registry", help="Remove old images from the registry instead.")
    ] = False,
    keep: Annotated[
        str | None,
        typer.Option(
            "--keep",
            metavar="N|Nd",
            help="In the registry: the newest N images of each flavor, or those of N days.",
        ),
    ] = None,
    pinned_by: Annotated[
        list[Path] | None,
        typer.Option(
            "--pinned-by",
            metavar="PATH",
            help="In the registry: also keep what this file, or a file of this folder, names. "
            "Repeat for more.",
        ),
    ] = None,
    repository: Repository = None,
    json: Json = False,
) -> None:
    """Free disk space: show what can be removed and why, then ask.

    Only what imagefactory made is removed. In a registry, what a tag of a cell, a moving tag or
    anybody else's tag names is kept, and what cluster.yaml, another YAML file or script beside the
    matrix, or a file in recipes/ names.
    """
    if registry != (keep is not None) or ((repository or pinned_by) and not registry):
        what = "--registry and --keep belong together, and --repository and --pinned-by to them"
        raise fail(InputError, "usage", what, fix="imagefactory prune --registry --keep 90d")
    if keep is not None:
        if everything or cache:
            what = "--all and --cache are about this machine, not about a registry"
            raise fail(InputError, "usage", what, fix="leave them out")
        wanted = _Wanted(keep=retention.parse_keep(keep), pinned_by=tuple(pinned_by or ()))
        _prune_registry(file, repository, wanted, ask=not yes, dry_run=dry_run, json=json)
        return
    workspace = workspace_of(file)
    found, engine = workflows.survey(workspace, everything=everything, build_cache=cache)
    items, kept = found.items, found.kept
    confirmed = bool(items) and not dry_run and (yes or _confirm(items, kept, json=json))
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


def _confirm(items: Sequence[Item], kept: Sequence[Item], *, json: bool) -> bool:
    if not json:
        _show(items, kept)
    return _asked(json=json)


def _asked(*, json: bool) -> bool:
    if json or not sys.stdin.isatty():
        ui.say("nothing was removed: use --yes to remove this without confirmation")
        return False
    return typer.confirm("Remove all of this?", err=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """What is to be kept in a registry."""

    keep: retention.Keep
    pinned_by: tuple[Path, ...]

    def pinned(self, project: Path) -> dict[str, str]:
        """What the files of the project, and those that were named, pin now."""
        return pins.read([*pins.of_project(project), *self.pinned_by])


def _prune_registry(
    file: Path, name: str | None, wanted: _Wanted, *, ask: bool, dry_run: bool, json: bool
) -> None:
    workspace, now = workspace_of(file), datetime.now(UTC)
    pinned = wanted.pinned(workspace.project)
    repository, plan = workflows.survey_registry(workspace, name, wanted.keep, now, pinned)
    if not json:
        _show_images("to remove", plan.items)
        _show_images("kept", plan.kept)
        if not plan.items:
            ui.say(f"nothing to remove from {repository.name}")
    confirmed = bool(plan.items) and not dry_run and (not ask or _asked(json=json))
    failed = list[Problem]()
    if confirmed:
        pinned = wanted.pinned(workspace.project)  # it may have taken long to answer
        failed = retention.remove(repository, plan, wanted.keep, now, pinned)
    if json:
        rows = {"items": plan.items, "kept": plan.kept}
        shown = {title: [item.as_dict() for item in items] for title, items in rows.items()}
        ui.emit_json({**shown, "removed": confirmed})
    elif confirmed:
        left = len(plan.items) - len(failed)
        ui.say(f"removed {left} images; the registry's garbage collection frees their blobs")
    if failed:
        raise CheckFailedError(failed)


def _show_images(title: str, items: Sequence[retention.Item]) -> None:
    if items:
        columns = ["digest", "tags", "size", "reason"]
        ui.table(
            title, columns, [[i.digest[:19], ", ".join(i.tags), _size(i), i.why] for i in items]
        )


def _size(item: retention.Item) -> str:
    return "" if item.size is None else ui.size(item.size)


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
