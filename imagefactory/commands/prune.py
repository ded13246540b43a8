"""The command that makes room: prune."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from imagefactory.building import disk
from imagefactory.commands.options import HERE, File, Json, engine_of, workspace_of
from imagefactory.errors import CheckFailedError, FactoryError, Problem
from imagefactory.system import ui
from imagefactory.system.engine import Engine
from imagefactory.upkeep import prune
from imagefactory.upkeep.prune import Item, Kind
from imagefactory.verifying import receipt
from imagefactory.workspace import Workspace

app = typer.Typer(add_completion=False)

BOOTSTRAPPED = "imagefactory/bootstrap"
#: Below the cache folder: what nothing but a next build needs.
REMAKABLE = ("build", "rebuild", "knobs", "metadata", "proofs", "sources", "toolchains")


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
    engine = engine_of(workspace.settings)
    found = _images(workspace, engine, everything=everything)
    cached = (
        prune.cache(engine.cache_records(), private=engine.private)
        if cache
        else prune.Pruning(items=(), kept=())
    )
    items = [
        *found.items,
        *_bases(engine, everything),
        *_folders(workspace, everything),
        *cached.items,
    ]
    kept = [*found.kept, *cached.kept]
    go = bool(items) and not dry_run and (yes or _asked(items, kept))
    before = disk.free(engine.data_root)
    failed = _remove(items, engine) if go else []
    if json:
        rows = [item.as_dict() for item in items]
        freed = _freed(before, engine) if go else 0
        ui.emit_json(
            {
                "items": rows,
                "kept": [item.as_dict() for item in kept],
                "removed": go,
                "bytes_freed": freed,
            }
        )
    elif go:
        ui.say(
            f"{len(items) - len(failed)} things removed; "
            f"{ui.size(_freed(before, engine))} more free on the disk"
        )
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


def _images(workspace: Workspace, engine: Engine, *, everything: bool) -> prune.Pruning:
    repository = workspace.matrix.repository
    cells = workspace.cells([])
    plans = workspace.plans(cells, workspace.look_everywhere(cells, engine))
    wanted = {tag: plan.build_key for plan in plans for tag in plan.cell.tags}
    found = engine.find_images(engine.names(repository))
    receipts = [receipt.load(workspace.settings.receipts, image.digest) for image in found.values()]
    return prune.images(
        found,
        wanted,
        repository=repository,
        used=engine.used_images(),
        verified={one.digest for one in receipts if one and one.passed},
        everything=everything,
    )


def _bases(engine: Engine, everything: bool) -> list[Item]:
    found = engine.find_images(engine.names(BOOTSTRAPPED)) if everything else {}
    why = "made again from the distribution's archive"
    return [
        Item(kind=Kind.BASE, name=ref, size=image.size, why=why)
        for ref, image in sorted(found.items())
    ]


def _folders(workspace: Workspace, everything: bool) -> list[Item]:
    cache = workspace.settings.cache
    if everything:
        roots = {cache / name: _size(cache / name) for name in REMAKABLE if (cache / name).is_dir()}
        return list(prune.folders(cache, (), "made or downloaded again when it is needed", roots))
    cells = {cell.name for cell in workspace.cells([])}
    contexts = {
        p: _size(p) for p in workspace.contexts.glob("*") if p.is_dir() and not _is_stage(p.name)
    }
    gone = list(
        prune.folders(
            workspace.contexts,
            cells,
            "build context of a cell that the matrix does not have",
            contexts,
        )
    )
    locked = {
        wheel.sha256 for resolution in workspace.lock.installable() for wheel in resolution.wheels
    }
    locked |= {source.sha256 for source in workspace.lock.sources}
    house = {p: _size(p) for p in (cache / "wheelhouse").glob("*") if p.is_dir()}
    return gone + list(
        prune.folders(cache / "wheelhouse", locked, "a file that the lock does not name", house)
    )


def _is_stage(name: str) -> bool:
    """Whether a build context is a base's or a wheel's, which no cell has the name of."""
    return name.startswith(("base-", "builder-", "wheel-"))


def _size(folder: Path) -> int:
    return sum(
        path.lstat().st_size
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink()
    )


def _remove(items: Sequence[Item], engine: Engine) -> list[Problem]:
    failed = []
    records = [item.name for item in items if item.kind is Kind.CACHE]
    for item in items:
        try:
            if item.kind in (Kind.IMAGE, Kind.BASE):
                engine.untag(item.name)
            elif item.kind is Kind.FOLDER:
                shutil.rmtree(item.name)
        except (FactoryError, OSError) as error:
            failed.append(
                Problem(
                    code="prune-failed", where=item.name, what=str(error), fix="remove it by hand"
                )
            )
    if records:
        engine.forget_cache(records)
    return failed


def _freed(before: int | None, engine: Engine) -> int:
    now = disk.free(engine.data_root)
    return max(0, now - before) if now is not None and before is not None else 0
