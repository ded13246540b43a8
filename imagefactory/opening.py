"""Opens a workspace: reads its files, connects to its engine, and sets up the stations."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from imagefactory.building import context_folders
from imagefactory.building.contexts import Contexts
from imagefactory.building.sites import Site
from imagefactory.errors import SetupError
from imagefactory.locking import refs, store
from imagefactory.locking.lock import Lock
from imagefactory.matrix import matrix
from imagefactory.matrix.cell import Cell
from imagefactory.matrix.matrix import Matrix
from imagefactory.patching import catalog, patching
from imagefactory.patching.measure import Bench
from imagefactory.patching.patch import Patch
from imagefactory.planning import planning
from imagefactory.planning.planning import Inputs
from imagefactory.planning.wheel_plan import WheelPlan
from imagefactory.system.engine import Engine
from imagefactory.verifying import receipt_store
from imagefactory.verifying.receipt_store import ReceiptStore
from imagefactory.wheels.make import BuildEnv
from imagefactory.wheels.wheels import EnvFor
from imagefactory.workspace import Workspace


def read(workspace: Workspace) -> Inputs:
    """Read matrix, lock and patches. Raises InputError with the problems of the first bad one."""
    declared, lock = matrix.load(workspace.matrix), store.read(workspace.lock)
    return Inputs(
        matrix=_bound(declared, lock),
        lock=lock,
        patches=catalog.load(*workspace.patches),
        templates=workspace.templates,
        project=workspace.project,
        settings=replace(workspace.settings, named=declared.indexes),
    )


def declared(workspace: Workspace) -> Matrix:
    """Read the matrix; cells of a git ref have the version that is locked for it, if it is."""
    found = matrix.load(workspace.matrix)
    is_needed = any(cell.ref for cell in found.cells)
    return _bound(found, read_lock(workspace) if is_needed else None)


def _bound(found: Matrix, lock: Lock | None) -> Matrix:
    return replace(found, cells=tuple(refs.bound(cell, lock) for cell in found.cells))


def read_lock(workspace: Workspace) -> Lock | None:
    """Read the lock; None if there is no file. Raises InputError if it cannot be read."""
    return store.read(workspace.lock) if workspace.lock.exists() else None


def write_lock(workspace: Workspace, lock: Lock) -> None:
    """Write ``wheels.lock`` atomically."""
    store.write(workspace.lock, lock, guards=workspace.settings.state / "locks")


def receipts(workspace: Workspace) -> ReceiptStore:
    """The receipts of this machine. Raises InputError for keys that cannot be used."""
    return receipt_store.of(workspace.settings, workspace.project)


def connect(workspace: Workspace) -> Engine:
    """Connect to the engine. Raises SetupError if none answers."""
    return Engine.connect(os.environ, workspace.settings.state)


def connect_if_any(workspace: Workspace) -> Engine | None:
    """Connect to the engine; None if none answers."""
    try:
        return connect(workspace)
    except SetupError:
        return None


def contexts(workspace: Workspace, inputs: Inputs, folder: Path | None = None) -> Contexts:
    """The build contexts below the workspace's own folder, or below ``folder``."""
    return Contexts(
        folder=folder or context_folders.claim(workspace.project, workspace.settings),
        templates=inputs.templates,
        unpackers=inputs.lock.unpackers,
        settings=inputs.settings,
    )


def wheel_env(workspace: Workspace, inputs: Inputs, site: Site) -> EnvFor:
    """A function that prepares the build environment of a wheel of a cell, when it is needed."""
    return partial(_wheel_env, workspace, inputs, site)


def bench(workspace: Workspace, patches: Sequence[Patch], *, fresh: bool = False) -> Bench:
    """The bench to measure ``patches`` on; reads the matrix only if a proof needs a toolchain."""
    if not any(patch.proof and patch.proof.kind == "nvcc" for patch in patches):
        return Bench(workspace.settings, fresh=fresh)
    toolchains = matrix.load(workspace.matrix).toolchains
    lock = read_lock(workspace)
    return patching.bench(patches, toolchains, lock, workspace.settings, fresh=fresh)


def _wheel_env(
    workspace: Workspace, inputs: Inputs, site: Site, cell: Cell, wanted: WheelPlan
) -> BuildEnv:
    site = site.for_wheel(cell, compiles=wanted.compiles)
    platform = site.platform_for(cell, wanted.where, compiles=wanted.compiles)
    found = planning.bases([cell], [platform], inputs.lock)
    base = planning.base_of(found, cell.flavor.base, platform)
    return BuildEnv(contexts=contexts(workspace, inputs), site=site, base=base)
