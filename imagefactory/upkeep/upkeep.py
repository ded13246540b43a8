"""The upkeep station: finds what uses disk space and can be recreated, and removes it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from imagefactory.building import bases, context_folders, disk
from imagefactory.building.stack import stack
from imagefactory.errors import FactoryError, Problem
from imagefactory.locking.lock import Lock
from imagefactory.planning import planning
from imagefactory.planning.cell_plan import CellPlan
from imagefactory.planning.planning import Inputs
from imagefactory.settings import Settings
from imagefactory.system import temporary
from imagefactory.system.engine import Engine
from imagefactory.system.platforms import Platform
from imagefactory.upkeep import prune
from imagefactory.upkeep.prune import Item, Kind, Pruning
from imagefactory.verifying import receipt_store

#: Folders below the cache folder whose content is recreated when needed.
RECREATABLE = (
    "bases",
    "build",
    "debs",
    stack.LAYERS,
    "metadata",
    "proofs",
    "rebuild",
    "sources",
    "toolchains",
    "unpackers",
    "vllm-settings",
)


def survey(
    engine: Engine,
    plans: Sequence[CellPlan],
    inputs: Inputs,
    *,
    everything: bool,
    build_cache: bool,
) -> Pruning:
    """Find what can be removed, and what is kept; ``plans`` are those of all cells.

    ``everything`` includes what is up to date, ``build_cache`` BuildKit's cache.
    """
    images = _images(engine, plans, inputs, everything=everything)
    records = engine.cache_records() if build_cache else []
    cached = prune.cache(records, private=engine.private)
    folders = _all_folders(inputs.settings) if everything else _stale_folders(plans, inputs)
    return Pruning(
        items=(*images.items, *_orphans(engine, inputs.settings), *folders, *cached.items),
        kept=(*images.kept, *cached.kept),
    )


def remove(items: Sequence[Item], engine: Engine) -> tuple[list[Problem], int]:
    """Remove ``items``; returns the problems, and the number of bytes that were freed."""
    before = disk.free(engine.data_root)
    failed = _remove(items, engine)
    now = disk.free(engine.data_root)
    freed = now - before if now is not None and before is not None else 0
    return failed, max(0, freed)


def _images(
    engine: Engine, plans: Sequence[CellPlan], inputs: Inputs, *, everything: bool
) -> Pruning:
    repository = inputs.matrix.repository
    found = engine.find_images(engine.names(repository))
    store = receipt_store.of(inputs.settings, inputs.project)
    receipts = [store.load(one.digest) for one in found.values()]
    return prune.images(
        found,
        {tag: plan.build_key for plan in plans for tag in plan.cell.tags},
        repository=repository,
        used=engine.used_images(),
        verified={one.digest for one in receipts if one and one.passed},
        everything=everything,
    )


def _orphans(engine: Engine, settings: Settings) -> list[Item]:
    """What killed runs left behind."""
    why = "its run has ended without removing it"
    found = [(Kind.CONTAINER, name, 0) for name in engine.orphans()]
    found += [(Kind.FOLDER, str(path), _size(path)) for path in temporary.orphans(settings.cache)]
    return [Item(kind=kind, name=name, size=size, why=why) for kind, name, size in found]


def _all_folders(settings: Settings) -> list[Item]:
    roots = [settings.cache / name for name in RECREATABLE]
    sizes = {root: _size(root) for root in roots if root.is_dir()}
    why = "recreated or downloaded again when needed"
    return list(prune.folders(settings.cache, (), why, sizes))


def _stale_folders(plans: Sequence[CellPlan], inputs: Inputs) -> list[Item]:
    contexts = context_folders.of(inputs.project, inputs.settings)
    cells = {plan.cell.name for plan in plans}
    sizes = {path: _size(path) for path in _folders(contexts) if not _is_stage(path.name)}
    why = "build context of a cell that is not in the matrix"
    stale = list(prune.folders(contexts, cells, why, sizes))
    orphans = {path: _size(path) for path in context_folders.orphans(inputs.settings)}
    why = "build contexts of a project that is gone"
    stale += prune.folders(context_folders.root(inputs.settings), (), why, orphans)
    locked = {"wheelhouse": _hashes(inputs.lock), "debs": _debs(inputs.lock)}
    for name, hashes in locked.items():
        root = inputs.settings.cache / name
        files = {path: _size(path) for path in _folders(root)}
        stale += prune.folders(root, hashes, "file that is not in the lock", files)
    layouts = contexts / stack.LAYOUTS
    made = dict.fromkeys(_folders(layouts), 0)  # links to what is counted below
    named = {name for cell in cells for name in (cell, f"{cell}-sources")}
    stale += prune.folders(layouts, named, "layers of a cell that is not in the matrix", made)
    layers = inputs.settings.cache / stack.LAYERS
    found = {one: _size(one) for one in _folders(layers) if not one.name.startswith("base-")}
    keep = {name for plan in plans for name in stack.folders_of(plan)}
    stale += prune.folders(layers, keep, "layer that no cell has", found)
    systems = {path: _size(path) for path in _folders(inputs.settings.cache / "bases")}
    why = "base with packages that are not in the lock"
    return [*stale, *prune.folders(inputs.settings.cache / "bases", _systems(inputs), why, systems)]


def _systems(inputs: Inputs) -> set[str]:
    """The folders of the bases that builds may need."""
    found = planning.bases(inputs.matrix.cells, Platform, inputs.lock).values()
    stages: tuple[bases.Stage, ...] = ("builder", "base")
    return {bases.folder_of(one, stage, inputs.settings).name for one in found for stage in stages}


def _folders(root: Path) -> list[Path]:
    return [path for path in root.glob("*") if path.is_dir()]


def _hashes(lock: Lock) -> set[str]:
    wheels = {wheel.sha256 for resolution in lock.installable() for wheel in resolution.wheels}
    wheels |= {wheel.sha256 for one in lock.toolchains for wheel in one.wheels}
    wheels |= {one.wheel.sha256 for one in lock.unpackers}
    wheels |= {ref.source.sha256 for ref in lock.refs}
    return wheels | {source.sha256 for source in lock.sources}


def _debs(lock: Lock) -> set[str]:
    return {deb.sha256 for base in lock.bases for deb in base.all_debs}


def _is_stage(name: str) -> bool:
    """Whether a build context belongs to a base or a wheel instead of a cell."""
    return name.startswith(("builder-", "compiler-", "wheel-")) or name == stack.LAYOUTS


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
            if item.kind is Kind.IMAGE:
                engine.untag(item.name)
            elif item.kind is Kind.CONTAINER:
                engine.remove_container(item.name)
            elif item.kind is Kind.FOLDER:
                shutil.rmtree(item.name)
        except (FactoryError, OSError) as error:
            what, fix = str(error), "remove it by hand"
            failed.append(Problem(code="prune-failed", where=item.name, what=what, fix=fix))
    if records:
        engine.forget_cache(records)
    return failed
