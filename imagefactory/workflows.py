"""Shorter workflows over the same stations as the pipeline, one for each other command."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from imagefactory import opening, pipeline
from imagefactory.building import bakefile, building, sites
from imagefactory.building.bakefile import BakeOptions
from imagefactory.building.sites import Site
from imagefactory.inspecting import rebuild as rebuilding
from imagefactory.inspecting.rebuild import Rebuilt
from imagefactory.matrix import matrix
from imagefactory.matrix.cell import Cell
from imagefactory.matrix.select import select
from imagefactory.patching import catalog, patching
from imagefactory.patching.check import Checked
from imagefactory.planning.wheel_plan import Trial
from imagefactory.results import Rendered
from imagefactory.system.engine import Engine
from imagefactory.upkeep import upkeep
from imagefactory.upkeep.prune import Pruning
from imagefactory.wheels import wheels
from imagefactory.wheels.make import Made, Tried
from imagefactory.workspace import Workspace


def render(workspace: Workspace, selection: Sequence[str], out: Path | None) -> Rendered:
    """Plan the selected cells; with ``out``, write everything that Buildx needs to build them."""
    planned = pipeline.plan(workspace, selection)
    if out is None:
        return Rendered(plans=planned.plans, bakefile=None)
    native = planned.site.platform if planned.site else planned.plans[0].cell.platform
    builder_bases = building.of_platform(planned.bases, native)
    contexts = opening.contexts(workspace, out)
    file = bakefile.write_cells(contexts, planned.plans, builder_bases, BakeOptions())
    return Rendered(plans=planned.plans, bakefile=file)


def rebuild(workspace: Workspace, tag: str, *, with_base: bool, files: bool) -> Rebuilt:
    """Rebuild the image ``tag`` without cache, and compare the result with it."""
    engine = opening.connect(workspace)
    image = engine.inspect_image(tag)
    inputs = opening.read(workspace)
    cell = rebuilding.cell_of(image, inputs.matrix.cells)
    planned = pipeline.plan_cells([cell], inputs, Site(engine=engine))
    (plan,) = planned.plans
    rebuilding.check_inputs(image, plan)
    contexts = opening.contexts(workspace, workspace.settings.cache / "rebuild")
    baking = rebuilding.Baking(contexts=contexts, bases=planned.bases, with_base=with_base)
    return rebuilding.rebuild(engine, image, plan, baking, files=files)


def wheels_of(
    workspace: Workspace, cells: Sequence[Cell], builder: str | None, *, again: bool
) -> tuple[Made, ...]:
    """Build the wheels of ``cells`` that are missing, or all of them ``again``."""
    inputs = opening.read(workspace)
    site = sites.find(opening.connect(workspace), builder)
    return pipeline.make_wheels(workspace, cells, inputs, site, again=again)[1]


def try_units(workspace: Workspace, cell: Cell, trial: Trial, builder: str | None) -> Tried:
    """Compile single units of the cell's vLLM to inspect the result."""
    inputs = opening.read(workspace)
    site = sites.find(opening.connect(workspace), builder)
    return wheels.compile_units(
        cell, inputs, opening.wheel_env(workspace, site, inputs.lock), trial
    )


def check_patches(workspace: Workspace, selection: Sequence[str]) -> tuple[Checked, ...]:
    """Try the whole series of each selected cell on upstream's sources, as a build would."""
    declared, patches = matrix.load(workspace.matrix), catalog.load(workspace.patches)
    cells = select(declared.cells, selection)
    series = [(cell, catalog.series(patches, cell)) for cell in cells]
    lock = opening.read_lock(workspace)
    return patching.check_series(series, declared.toolchains, lock, workspace.settings)


def survey(workspace: Workspace, *, everything: bool, build_cache: bool) -> tuple[Pruning, Engine]:
    """Find what can be removed to free disk space; also returns the engine to remove it from."""
    engine = opening.connect(workspace)
    inputs = opening.read(workspace)
    planned = pipeline.plan_cells(inputs.matrix.cells, inputs, Site(engine=engine))
    found = upkeep.survey(
        engine, planned.plans, inputs, everything=everything, build_cache=build_cache
    )
    return found, engine
