"""The pipeline from a matrix to images in a registry: ``build``, then ``push``.

A cell is one image of the matrix. The steps are: cells, wheels (as the lock says), plan, patches
checked, build (meanwhile, wheels are audited), verify, push. Each is a call into one station, which
takes and returns immutable values; a station is a package, such as ``planning``.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache as once
from functools import partial
from pathlib import Path

from imagefactory import opening
from imagefactory.auditing import auditing
from imagefactory.building import building, layouts, sites
from imagefactory.building.bakefile import BakeOptions
from imagefactory.building.building import BuildResult
from imagefactory.building.sites import Site
from imagefactory.errors import FactoryError, InputError, Problem, SetupError
from imagefactory.matrix.cell import Cell
from imagefactory.matrix.select import select
from imagefactory.patching import patching
from imagefactory.patching.patch import State
from imagefactory.planning import planning
from imagefactory.planning.cell_plan import LABEL, CellPlan
from imagefactory.planning.decision import Action, Uncovered, decide
from imagefactory.planning.planning import Inputs
from imagefactory.publishing import publishing, tags
from imagefactory.publishing.publishing import Delivery
from imagefactory.results import Built, Planned, Watcher
from imagefactory.system import reference, ui
from imagefactory.system.background import in_background
from imagefactory.system.engine import Engine, ImageInfo
from imagefactory.verifying import leftovers
from imagefactory.verifying.receipt import Level, Receipt
from imagefactory.wheels import wheels
from imagefactory.wheels.make import Made
from imagefactory.workspace import Workspace


def build(
    workspace: Workspace,
    selection: Sequence[str],
    watcher: Watcher,
    *,
    builders: Sequence[str] = (),
    cache: str | None = None,
    output: Path | None = None,
    skip_audit: bool = False,
    skip_verify: bool = False,
) -> Built:
    """Build all changed cells in one bake, and verify images that have not passed yet.

    ``builders`` are buildx builders, those of the matrix if there are none; ``cache`` is a
    repository for build caches; ``skip_audit`` builds cells whose wheels cannot work together, and
    ``skip_verify`` skips the verification. With ``output``, images become OCI layouts in that
    folder; they are not in the engine, and not verified.
    """
    connecting = in_background(opening.connect, workspace)  # meanwhile, files are read
    inputs = opening.read(workspace)
    cells, uncovered = planning.split(select(inputs.matrix.cells, selection), inputs)
    site = sites.find(connecting.result(), builders or inputs.matrix.builders)

    inputs, _ = make_wheels(workspace, cells, inputs, site)
    planned = plan_cells(cells, inputs, site, output=output)
    planned = replace(planned, uncovered=uncovered)
    watcher.planned(planned)

    to_build = [one.plan for one in planned.decisions if one.action is Action.BUILD]
    blocked = {} if skip_audit else _known_as_bad(to_build, inputs)
    for name, problems in _blocked_by_patches(to_build, inputs).items():
        blocked[name] = (*blocked.get(name, ()), *problems)
    plans = [plan for plan in to_build if plan.cell.name not in blocked]
    audited = once(partial(_blocked_by_audit, [] if skip_audit else plans, inputs))
    results = bake(workspace, plans, planned, BakeOptions(cache=cache, output=output), audited)
    blocked |= audited()

    receipts = () if skip_verify or output else verify_new(workspace, planned, results, watcher)
    return Built(planned=planned, stopped=blocked, results=results, receipts=receipts)


def plan(
    workspace: Workspace,
    selection: Sequence[str],
    *,
    allow_no_engine: bool = True,
    allow_uncovered: bool = False,
) -> Planned:
    """Plan what a build would do; nothing is built.

    ``allow_no_engine`` plans without an engine, too; ``allow_uncovered`` leaves out cells that are
    not locked, as a build does, instead of raising InputError for them.
    """
    inputs = opening.read(workspace)
    cells: Sequence[Cell] = select(inputs.matrix.cells, selection)
    uncovered: tuple[Uncovered, ...] = ()
    if allow_uncovered:
        cells, uncovered = planning.split(cells, inputs)
    engine = opening.connect_if_any(workspace) if allow_no_engine else opening.connect(workspace)
    planned = plan_cells(cells, inputs, Site(engine=engine) if engine else None)
    return replace(planned, uncovered=uncovered)


def make_wheels(
    workspace: Workspace,
    cells: Sequence[Cell],
    inputs: Inputs,
    site: Site,
    *,
    again: bool = False,
) -> tuple[Inputs, tuple[Made, ...]]:
    """Build the wheels that ``cells`` need and that are missing; inputs have the new lock."""
    lock, made = wheels.make_wheels(
        cells,
        inputs,
        opening.wheel_env(workspace, inputs, site),
        write=lambda lock: opening.write_lock(workspace, lock),
        again=again,
    )
    return replace(inputs, lock=lock), made


def plan_cells(
    cells: Sequence[Cell], inputs: Inputs, site: Site | None, *, output: Path | None = None
) -> Planned:
    """Plan each cell, and decide what a build would do for it.

    With ``output``, a build makes OCI layouts there, and images in the engine do not matter.
    """
    engine = site.engine if site else None
    finding = in_background(_existing, engine, cells, output) if engine else None
    platforms = site.platforms if site else (cells[0].platform,)
    found = planning.bases(cells, platforms, inputs.lock)
    plans = planning.plan(cells, found, inputs)
    tags.check(plans)
    images = finding.result() if finding else None
    return Planned(
        inputs=inputs, bases=found, decisions=decide(plans, images), images=images, site=site
    )


def bake(
    workspace: Workspace,
    plans: Sequence[CellPlan],
    planned: Planned,
    options: BakeOptions,
    audited: Callable[[], Container[str]],
) -> dict[str, BuildResult]:
    """Build ``plans`` but for the cells of ``audited``; returns the result of each, by cell."""
    if not plans or planned.site is None:
        return {}
    leftovers.sweep(planned.site.engine, workspace.settings.cache)
    contexts = opening.contexts(workspace, planned.inputs)
    logs = workspace.settings.logs
    results = building.build(
        plans, planned.bases, planned.site, contexts, options, logs, stopped=audited
    )
    return {result.cell: result for result in results}


def verify_new(
    workspace: Workspace, planned: Planned, built: Mapping[str, BuildResult], watcher: Watcher
) -> tuple[Receipt, ...]:
    """Verify the images that were built or are unchanged, except digests that passed before."""
    if planned.site is None:
        return ()
    engine = planned.site.engine
    good = [
        one.plan.cell.tag
        for one in planned.decisions
        if one.action is Action.SKIP or _succeeded(built.get(one.plan.cell.name))
    ]
    images = engine.find_images(good) if built else planned.images or {}
    left = opening.receipts(workspace).not_passed(good, images)
    return _verify_all(workspace, engine, left, planned.expected(), watcher) if left else ()


def verify(
    workspace: Workspace,
    tags: Sequence[str],
    selection: Sequence[str],
    watcher: Watcher,
    *,
    source: Path | None = None,
    level: Level = Level.SERVE,
    models: Sequence[str] | None = None,
) -> tuple[Receipt, ...]:
    """Verify images by tag, or the images of the selected cells, up to ``level``.

    ``models`` are the tiny models to serve, as of ``choice.parse``. With ``source``, the images of
    the selected cells are loaded from that folder of OCI layouts.
    """
    engine = opening.connect(workspace)
    if tags:
        expected = expected_by_tag(workspace, tags, engine)
        return _verify_all(workspace, engine, tags, expected, watcher, level=level, models=models)
    planned = plan(workspace, selection, allow_no_engine=False)
    own = [one.cell.tag for one in planned.plans]
    reading = _load(workspace, engine, source, [one.cell for one in planned.plans])
    return _verify_all(
        workspace, engine, own, planned.expected(), watcher, reading, level=level, models=models
    )


def _load(
    workspace: Workspace, engine: Engine, source: Path | None, cells: Sequence[Cell]
) -> Future[None] | None:
    """Load the images of ``cells`` from ``source``; meanwhile their layers are read."""
    if source is None:
        return None
    from imagefactory.verifying.outside import outside  # noqa: PLC0415 - only used here

    folders = [layouts.folder_of(source, cell) for cell in cells]
    reading = in_background(outside.read_ahead, folders, workspace.settings)
    with ui.step(f"loading {', '.join(cell.tag for cell in cells)}"):
        layouts.load(engine, source, cells)
    return reading


def push(workspace: Workspace, selection: Sequence[str], to: str | None) -> Delivery:
    """Push the images of the selected cells; the last verification of each must have passed.

    ``to`` is another repository than the matrix's. Raises InputError if it is none.
    """
    if to is not None:
        check_repository(to, "--to")
    from imagefactory.verifying import check_registry  # noqa: PLC0415 - imports NumPy and requests

    planned = plan(workspace, selection, allow_no_engine=False)
    engine = opening.connect(workspace)
    settings, repository = workspace.settings, to or planned.inputs.matrix.repository
    required = check_registry.requirements
    receipts = opening.receipts(workspace)
    ready = publishing.allowed(planned.plans, engine, receipts, required, repository)
    return publishing.push(engine, ready, repository, receipts, settings)


def check_repository(text: str, where: str) -> None:
    """Raise InputError if ``text``, which is from the option ``where``, is no repository."""
    try:
        reference.repository(text)
    except InputError as error:
        raise InputError(replace(problem, where=where) for problem in error.problems) from None


def _existing(engine: Engine, cells: Sequence[Cell], output: Path | None) -> dict[str, ImageInfo]:
    """The images of ``cells`` that exist where a build puts them, by tag."""
    if output:
        return layouts.find(output, cells)
    return engine.find_images([cell.tag for cell in cells])


def _known_as_bad(plans: Sequence[CellPlan], inputs: Inputs) -> dict[str, tuple[Problem, ...]]:
    """The cells that an earlier audit found bad, with the problems."""
    audits = auditing.recall([plan.cell for plan in plans], inputs)
    return {name: one.problems for name, one in audits.items() if one.problems}


def _blocked_by_audit(plans: Sequence[CellPlan], inputs: Inputs) -> dict[str, tuple[Problem, ...]]:
    """The cells whose wheels cannot work together, with the problems."""
    audits = auditing.audit_cells([plan.cell for plan in plans], inputs, before_build=True)
    for problem in dict.fromkeys(one.unknown for one in audits if one.unknown):
        ui.warn(problem.what)
    return {one.cell: one.problems for one in audits if one.problems}


def _blocked_by_patches(
    plans: Sequence[CellPlan], inputs: Inputs
) -> dict[str, tuple[Problem, ...]]:
    """The cells that cannot be built because of a patch, with the problems."""
    series = [(one.cell, one.series) for one in plans]
    toolchains = inputs.matrix.toolchains
    try:
        checked = patching.check_series(series, toolchains, inputs.lock, inputs.settings)
    except SetupError as error:
        ui.warn(f"patches are only checked in the builder: {error.problems[0].what}")
        return {}
    for row in (row for one in checked for row in one.rows if row.state is State.OBSOLETE):
        ui.say(f"{row.patch} is obsolete on {row.project} {row.version}, skipped: {row.reason}")
    return {one.cell: one.problems for one in checked if one.problems}


def _succeeded(result: BuildResult | None) -> bool:
    return result is not None and result.ok


def expected_by_tag(
    workspace: Workspace, tags: Sequence[str], engine: Engine
) -> dict[str, CellPlan]:
    """The plans of those ``tags`` that belong to the matrix, if it can be read.

    An image with another tag, such as a moving one, is compared with the cell that its labels name,
    if that still has the same build key.
    """
    if not workspace.matrix.exists() or not workspace.lock.exists():
        return {}
    try:
        inputs = opening.read(workspace)
        by_tag = {tag: cell for cell in inputs.matrix.cells for tag in cell.tags}
        others = engine.find_images([tag for tag in tags if tag not in by_tag])
        claims = {tag: _claim(image) for tag, image in others.items()}
        names = {by_tag[tag].name for tag in tags if tag in by_tag}
        names |= {name for name, _ in claims.values()}
        cells = [cell for cell in inputs.matrix.cells if cell.name in names]
        if not cells:
            return {}
        planned = plan_cells(cells, inputs, Site(engine=engine))
        plans = {(plan.cell.name, plan.build_key): plan for plan in planned.plans}
        claimed = {tag: plans[one] for tag, one in claims.items() if one in plans}
        return planned.expected() | claimed
    except FactoryError as error:
        ui.warn(f"not compared with the matrix: {error.problems[0].what}")
        return {}


def _claim(image: ImageInfo) -> tuple[str, str]:
    """The cell and the build key that an image says it is of."""
    cell, key = (image.labels.get(f"{LABEL}.{name}", "") for name in ("cell", "build-key"))
    return cell, key


def _verify_all(
    workspace: Workspace,
    engine: Engine,
    tags: Sequence[str],
    expected: Mapping[str, CellPlan],
    watcher: Watcher,
    reading: Future[None] | None = None,
    *,
    level: Level = Level.SERVE,
    models: Sequence[str] | None = None,
) -> tuple[Receipt, ...]:
    """Verify images one after the other, and save a receipt for each that was run in full.

    ``reading`` ends when their layers were read.
    """
    from imagefactory.verifying import (  # noqa: PLC0415 - imports NumPy and requests
        check_registry,
        choice,
        verifying,
    )
    from imagefactory.verifying.outside import outside  # noqa: PLC0415 - only used here

    leftovers.sweep(engine, workspace.settings.cache)
    lock, receipts = opening.read_lock(workspace), opening.receipts(workspace)
    if level.includes(Level.SERVE) and not models:
        receipts.check_folder()
    for tag in tags:  # what one of them lacks is known before minutes are spent on another
        choice.choose(engine.inspect_image(tag), level, models)
    done, left = [], dict[str, None]()
    for tag in tags:
        made = verifying.verify(
            tag,
            engine=engine,
            lock=lock,
            settings=workspace.settings,
            now=datetime.now(UTC),
            expected=verifying.expectation(expected[tag]) if tag in expected else None,
            content=(
                outside.judge_with(engine, expected[tag], workspace.settings, reading)
                if tag in expected
                else None
            ),
            level=level,
            models=models,
        )
        lacking = check_registry.left_out(made.checks, level)
        if level.includes(Level.SERVE) and not lacking:
            receipts.save(made)
        left.update(dict.fromkeys(lacking))
        watcher.verified(made)
        done.append(made)
    if not level.includes(Level.SERVE):
        ui.say(f"no receipt was written: --level {level} leaves out checks")
    elif left:
        ui.say(f"no receipt was written: level {level} also needs the models {', '.join(left)}")
    elif done and receipts.trust.signer is None:
        keys = receipts.trust.keys
        why = "only signed ones count here" if keys else "an edited one would go unnoticed"
        ui.say(f"the receipts are unsigned, and {why}: imagefactory key new makes a key")
    return tuple(done)
