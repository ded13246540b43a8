"""Plans of cells in the project's own matrix."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from imagefactory.building.stack.stack import Stack
from imagefactory.locking.lock import Deb, Lock, LockedBase
from imagefactory.matrix.cell import Base, Cell, request_of
from imagefactory.patching import catalog
from imagefactory.planning import cell_plan
from imagefactory.planning.cell_plan import BaseImage, CellPlan
from imagefactory.planning.planning import Inputs
from imagefactory.settings import Settings
from imagefactory.system.platforms import Platform
from support import ROOT
from support.project import project_lock, project_matrix, stock_patches


def deb(name: str, version: str = "1") -> Deb:
    path = f"pool/main/{name[0]}/{name}/{name}_{version}_all.deb"
    return Deb(
        name=name,
        version=version,
        arch="all",
        sha256=f"{len(name):064}",
        size=1,
        archive="debian",
        path=path,
    )


def base_image(
    base: Base, platform: Platform, *debs: Deb, digest: str = "sha256:1", suite: str | None = None
) -> BaseImage:
    """``base`` as an image of a registry, or with a ``suite`` as its packages."""
    locked = LockedBase(
        name=base.name,
        platform=platform,
        created="2026-11-20",
        image=base.image,
        digest=None if suite else digest,
        suite=suite,
        packages=base.packages,
        debs=debs,
        builder=(deb("git"),) if suite else (),
    )
    return cell_plan.base_image(base, locked)


def locked_bases(base: Base, *_: object, **__: object) -> list[LockedBase]:
    """A base for each platform, as ``locking.bases`` would lock it, without an archive."""
    return [base_image(base, platform, suite=base.suite).locked for platform in Platform]


#: The layers of an image that were made before.
STACK = Stack(
    image="oci-layout:///stacks/image@sha256:1",
    sources="oci-layout:///stacks/sources@sha256:2",
    report={"layers": [], "dropped": []},
)


def planned(base: BaseImage | None = None, **options: Any) -> CellPlan:
    """A plan of one cell of the project's matrix; without arguments always the same."""
    return _planned(base, **options) if base or options else _usual()


@lru_cache
def _usual() -> CellPlan:
    return _planned(None)


def _planned(base: BaseImage | None, **options: Any) -> CellPlan:
    cell = next(c for c in project_matrix().cells if c.axes["vllm"] == "0.22.1")
    resolution = project_lock().find(request_of(cell))
    assert resolution is not None
    base = base or base_image(cell.flavor.base, cell.platform)
    series = catalog.series(stock_patches(), cell)
    given = {"resolution": resolution, "series": series, **options}
    return cell_plan.compose(cell, base=base, templates=(ROOT / "templates",), **given)


def inputs_with(lock: Lock, settings: Settings) -> Inputs:
    """The project's matrix and templates with another lock, and without patches."""
    return Inputs(
        matrix=project_matrix(),
        lock=lock,
        patches={},
        project=ROOT,
        templates=(ROOT / "templates",),
        settings=settings,
    )


@lru_cache
def all_planned() -> tuple[CellPlan, ...]:
    """A plan for every cell of the project's matrix."""
    return plans_of(project_matrix().cells)


def plans_of(cells: Sequence[Cell]) -> tuple[CellPlan, ...]:
    """Plans of cells that the project's lock covers, with toolchains, on bases of known digest."""
    lock, patches = project_lock(), stock_patches()
    plans = []
    for cell in cells:
        resolution = lock.find(request_of(cell))
        assert resolution is not None
        base = base_image(cell.flavor.base, cell.platform, digest=f"sha256:{'0' * 64}")
        plan = cell_plan.compose(
            cell,
            resolution,
            catalog.series(patches, cell),
            base,
            templates=(ROOT / "templates",),
            toolchain=lock.toolchain(cell.flavor.toolchain or "", cell.platform),
        )
        plans.append(plan)
    return tuple(plans)
