"""Plans of cells in the project's own matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from imagefactory.building.bases import unresolved
from imagefactory.locking import store
from imagefactory.locking.lock import Lock
from imagefactory.matrix import matrix
from imagefactory.matrix.cell import Cell, request_of
from imagefactory.matrix.matrix import Matrix
from imagefactory.patching import catalog
from imagefactory.planning import cell_plan
from imagefactory.planning.cell_plan import BaseImage, CellPlan
from imagefactory.planning.planning import Inputs
from imagefactory.settings import Settings
from support import ROOT


@lru_cache
def _lock() -> Lock:
    return store.read(ROOT / "wheels.lock")


@lru_cache
def _matrix() -> Matrix:
    return matrix.load(ROOT / "matrix.yaml")


def planned(base: BaseImage | None = None, **options: Any) -> CellPlan:
    cell = next(c for c in _matrix().cells if c.axes["vllm"] == "0.22.1")
    resolution = _lock().find(request_of(cell))
    assert resolution is not None
    base = base or replace(
        unresolved(cell.flavor.base, cell.platform), digest="sha256:1", origin="registry"
    )
    series = catalog.series(catalog.load(ROOT / "patches"), cell)
    given = {"resolution": resolution, "series": series, "uv_version": "1", **options}
    return cell_plan.compose(cell, base=base, templates=(ROOT / "templates",), **given)


def inputs_with(lock: Lock, settings: Settings) -> Inputs:
    """The project's matrix and templates with another lock, and without patches."""
    return Inputs(
        matrix=_matrix(),
        lock=lock,
        patches={},
        project=ROOT,
        templates=(ROOT / "templates",),
        settings=settings,
    )


@lru_cache
def all_planned() -> tuple[CellPlan, ...]:
    """A plan for every cell of the project's matrix."""
    return plans_of(_matrix().cells)


def plans_of(cells: Sequence[Cell]) -> tuple[CellPlan, ...]:
    """Plans of cells that the project's lock covers, with toolchains, on bases of known digest."""
    lock, patches = _lock(), catalog.load(ROOT / "patches")
    plans = []
    for cell in cells:
        resolution = lock.find(request_of(cell))
        assert resolution is not None
        base = unresolved(cell.flavor.base, cell.platform)
        plan = cell_plan.compose(
            cell,
            resolution,
            catalog.series(patches, cell),
            replace(base, digest=f"sha256:{'0' * 64}", origin="registry"),
            templates=(ROOT / "templates",),
            uv_version="1",
            toolchain=lock.toolchain(cell.flavor.toolchain or "", cell.platform),
        )
        plans.append(plan)
    return tuple(plans)
