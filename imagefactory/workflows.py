"""Shorter workflows over the same stations as the pipeline, one for each other command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from imagefactory import opening, pipeline
from imagefactory.auditing import auditing
from imagefactory.auditing.auditing import Audit
from imagefactory.building import bakefile, building, records, sites
from imagefactory.building.bakefile import BakeOptions
from imagefactory.building.sites import Site
from imagefactory.building.stack import stack
from imagefactory.errors import CheckFailedError, FactoryError, InputError, SetupError, fail
from imagefactory.inspecting import anatomy, inspecting
from imagefactory.inspecting import rebuild as rebuilding
from imagefactory.inspecting.anatomy import Anatomy
from imagefactory.inspecting.rebuild import Rebuilt
from imagefactory.locking import bases, locking, store
from imagefactory.locking.locking import Renewed
from imagefactory.matrix import matrix
from imagefactory.matrix.cell import Cell
from imagefactory.matrix.matrix import Matrix
from imagefactory.matrix.select import select
from imagefactory.patching import catalog, patching
from imagefactory.patching.check import Checked
from imagefactory.planning import planning
from imagefactory.planning.cell_plan import LABEL, CellPlan
from imagefactory.planning.wheel_plan import Trial
from imagefactory.publishing import attachments, moving, retention, tags, vouching
from imagefactory.publishing.moving import Move, Moved, Repository
from imagefactory.reporting.facts import Before, Facts
from imagefactory.results import Exported, Rendered
from imagefactory.system import reference, ui
from imagefactory.system.engine import Engine
from imagefactory.upkeep import upkeep
from imagefactory.upkeep.prune import Pruning
from imagefactory.verifying import receipt_store
from imagefactory.verifying.receipt import Level, Requirement
from imagefactory.verifying.receipt_store import Found, ReceiptStore, Refused
from imagefactory.wheels import wheels
from imagefactory.wheels.make import Made, Tried
from imagefactory.workspace import Workspace

#: The number of packages that are listed as the biggest of an image.
BIGGEST = 10


def check(workspace: Workspace, selection: Sequence[str]) -> tuple[CellPlan, ...]:
    """Plan the selected cells without an engine.

    Raises InputError with the problems of the matrix, the lock or the patches.
    """
    inputs = opening.read(workspace)
    cells = select(inputs.matrix.cells, selection)
    return pipeline.plan_cells(cells, inputs, None).plans


def lock(
    workspace: Workspace,
    declared: Matrix,
    now: datetime,
    *,
    upgrade: bool = False,
    upgrade_base: bool = False,
    upgrade_packages: tuple[str, ...] = (),
) -> tuple[Renewed, bool]:
    """Lock all that ``declared`` needs, within its policies; also returns whether that was written.

    What cannot be resolved is in the result, and everything else is written.
    """
    old = opening.read_lock(workspace)
    settings = replace(workspace.settings, named=declared.indexes)
    renewed = locking.renew(
        old,
        declared.cells,
        settings,
        toolchains=declared.toolchains,
        upgrade=upgrade,
        upgrade_packages=upgrade_packages,
        policies=declared.policies,
        now=now,
    )
    held = {n for n, hold in declared.policies.holds.items() if hold.is_in_force(now.date())}
    renewed = bases.renew(
        renewed, old, declared.cells, settings, upgrade=upgrade or upgrade_base, held=held
    )
    writes = renewed.lock != old and bool(old or renewed.lock.resolutions)
    if writes:
        opening.write_lock(workspace, renewed.lock)
    return renewed, writes


def render(workspace: Workspace, selection: Sequence[str], out: Path | None) -> Rendered:
    """Plan the selected cells; with ``out``, write everything that Buildx needs to build them."""
    planned = pipeline.plan(workspace, selection)
    if out is None:
        return Rendered(plans=planned.plans, bakefile=None)
    native = planned.site.platform if planned.site else planned.plans[0].cell.platform
    builder_bases = building.of_platform(planned.bases, native)
    contexts = opening.contexts(workspace, planned.inputs, out)
    layouts = out / stack.LAYOUTS
    stacks = {p.cell.name: stack.make(p, layouts, contexts.settings) for p in planned.plans}
    file = bakefile.write_cells(contexts, planned.plans, builder_bases, stacks, BakeOptions())
    return Rendered(plans=planned.plans, bakefile=file)


def export(workspace: Workspace, selection: str, out: Path | None) -> Exported:
    """The wheels of the one cell that ``selection`` matches, as a ``pylock.toml`` at ``out``.

    Raises InputError for several cells and for a file name that installers do not accept.
    """
    from imagefactory.locking import pylock  # noqa: PLC0415 - other commands do not need it

    if out and not pylock.is_valid_pylock_path(out):
        what, fix = f"{str(out)!r} is not a name of a PEP 751 file", "-o pylock.NAME.toml"
        raise fail(InputError, "export-name", what, fix=fix)
    inputs = opening.read(workspace)
    cells = select(inputs.matrix.cells, [selection])
    if len(cells) > 1:
        what = f"{selection!r} matches {len(cells)} cells: {', '.join(one.name for one in cells)}"
        raise fail(InputError, "export-which", what, fix="name one of them")
    (cell,) = cells
    resolution = planning.installed(cell, inputs)
    locations = pylock.locate(resolution, workspace.settings)
    folder = out.resolve().parent if out else Path.cwd()
    text = pylock.dumps(resolution, locations, folder, cell=cell.name)
    return Exported(cell=cell.name, wheels=len(resolution.wheels), text=text)


def rebuild(workspace: Workspace, tag: str, *, with_base: bool, files: bool) -> Rebuilt:
    """Rebuild the image ``tag`` without cache, and compare the result with it."""
    engine = opening.connect(workspace)
    image = engine.inspect_image(tag)
    inputs = opening.read(workspace)
    cell = rebuilding.cell_of(image, inputs.matrix.cells)
    planned = pipeline.plan_cells([cell], inputs, Site(engine=engine))
    (plan,) = planned.plans
    rebuilding.check_inputs(image, plan)
    folder = workspace.settings.cache / "rebuild"
    contexts = opening.contexts(workspace, inputs, folder)
    baking = rebuilding.Baking(contexts=contexts, bases=planned.bases, with_base=with_base)
    return rebuilding.rebuild(engine, image, plan, baking, files=files)


def wheels_of(
    workspace: Workspace, cells: Sequence[Cell], builders: Sequence[str], *, again: bool
) -> tuple[Made, ...]:
    """Build the wheels of ``cells`` that are missing, or all of them ``again``."""
    inputs = opening.read(workspace)
    site = sites.find(opening.connect(workspace), builders or inputs.matrix.builders)
    return pipeline.make_wheels(workspace, cells, inputs, site, again=again)[1]


def try_units(workspace: Workspace, cell: Cell, trial: Trial, builders: Sequence[str]) -> Tried:
    """Compile single units of the cell's vLLM to inspect the result."""
    inputs = opening.read(workspace)
    site = sites.find(opening.connect(workspace), builders or inputs.matrix.builders)
    env_for = opening.wheel_env(workspace, inputs, site)
    return wheels.compile_units(cell, inputs, env_for, trial)


def check_patches(workspace: Workspace, selection: Sequence[str]) -> tuple[Checked, ...]:
    """Try the whole series of each selected cell on upstream's sources, as a build would."""
    declared, patches = opening.declared(workspace), catalog.load(*workspace.patches)
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


def promote(
    workspace: Workspace,
    what: str,
    tag: str,
    repository: str | None,
    now: datetime,
    *,
    unattended: bool = False,
) -> Moved:
    """Give the moving ``tag`` to a cell's image, or to one by its reference, tag or digest."""
    declared = matrix.load(workspace.matrix)
    if what not in {cell.name for cell in declared.cells}:
        name, what = vouching.reference_of(
            what, repository or declared.repository, only=repository is not None
        )
        found = repository_of(workspace, declared, name)
        return moving.promote(found, what, tag, now, unattended=unattended)
    inputs = opening.read(workspace)
    cells = [cell for cell in inputs.matrix.cells if cell.name == what]
    (plan,) = pipeline.plan_cells(cells, inputs, None).plans
    found = repository_of(workspace, declared, repository)
    return moving.promote(found, tags.of_plan(plan), tag, now, unattended=unattended)


def rollback(
    workspace: Workspace, tag: str, to: str | None, repository: str | None, now: datetime
) -> Moved:
    """Give the moving ``tag`` to an image that it had before."""
    found = repository_of(workspace, matrix.load(workspace.matrix), repository)
    return moving.rollback(found, tag, to, now)


def history(workspace: Workspace, tag: str, repository: str | None, last: int | None) -> list[Move]:
    """The moves of a moving tag, the newest first."""
    found = repository_of(workspace, matrix.load(workspace.matrix), repository)
    return moving.history(found, tag, last)


def find_receipt(workspace: Workspace, tag: str) -> Found:
    """The receipt that says that an image passed, found here or in the image's registry.

    Raises CheckFailedError if there is no such image or receipt.
    """
    from imagefactory.system.registry import Registries  # noqa: PLC0415 - rarely used

    text = tag if reference.parse(tag).tag or reference.parse(tag).digest else f"{tag}:latest"
    name, wanted = vouching.reference_of(text, "")
    engine, receipts = opening.connect_if_any(workspace), opening.receipts(workspace)
    local = engine.find_images([tag]).get(tag) if engine else None
    image = vouching.of_engine(local, name) if local else None
    found = [*vouching.own(image, receipts)] if image else []
    registries, there = engine.registries if engine else Registries(), None
    if reference.parse(tag).host or not receipt_store.weightiest(found):
        try:
            there = vouching.read_image(registries, name, local.digest if local else wanted)
        except SetupError:
            if not found:  # else why they do not count says more than that nobody answers
                raise
    if there:
        candidates = vouching.candidates(there, registries, receipts)
        return vouching.judge(there, candidates, _needed, "verify")
    if image and found:
        return vouching.judge(image, found, _needed, "verify")
    what = f"{tag} has no receipt here, and {name} has no such image"
    raise fail(CheckFailedError, "verify-unverified", what, fix=f"imagefactory verify {tag}")


def vouched(workspace: Workspace, tag: str, level: Level | None) -> Found | None:
    """The signed receipt by which an image that was pulled need not be run here.

    None for an image that this machine built or verified itself, and where no receipt of another
    machine counts or shows ``level``.
    """
    receipts = opening.receipts(workspace)
    if not (receipts.trust.wants_signatures and reference.parse(tag).host):
        return None
    image = opening.connect(workspace).find_images([tag]).get(tag)
    if image is None or receipts.find(image.digest) is not None:
        return None
    key = image.labels.get(f"{LABEL}.build-key", "")
    if image.digest in records.read(workspace.settings.state / records.FOLDER, key):
        return None
    try:
        found = find_receipt(workspace, tag)
    except FactoryError as error:
        ui.say(f"it is run here: {error.problems[0].what}")
        return None
    if level and not found.receipt.level.includes(level):
        ui.say(f"it is run here: its receipt shows level {found.receipt.level}, not {level}")
        return None
    return found


def gather(workspace: Workspace, engine: Engine, image: Anatomy, now: datetime) -> Facts:
    """All that is known of an image of ``engine``; it is not run, and no wheel is read."""
    from imagefactory.verifying import check_registry  # noqa: PLC0415 - imports NumPy

    receipts = opening.receipts(workspace)
    found = receipts.find(image.digest)
    return Facts(
        image=image,
        found=found,
        audit=_recall_audit(workspace, image),
        before=_before(engine, image, receipts, found),
        written=now,
        biggest=biggest(workspace, image),
        levels={row.name: row.level for row in check_registry.describe()},
    )


def biggest(workspace: Workspace, image: Anatomy) -> list[tuple[str, str, int]]:
    """The largest wheels of an image: name, version, compressed bytes as the lock has them."""
    lock = opening.read_lock(workspace)
    sizes = {wheel.sha256: wheel.size for wheel in lock.all_wheels()} if lock else {}
    return anatomy.biggest(image, sizes, BIGGEST)


def _recall_audit(workspace: Workspace, image: Anatomy) -> Audit | str:
    """The known audit of the wheels of an image, or why there is none."""
    name = image.labels.get(f"{LABEL}.cell")
    if name is None:
        return "it was not built by imagefactory"
    try:
        inputs = opening.read(workspace)
        cell = next((one for one in inputs.matrix.cells if one.name == name), None)
        if cell is None:
            return f"{workspace.matrix} has no cell {name}"
        locked = planning.installed(cell, inputs)
        if store.digest(locked) != image.labels.get(f"{LABEL}.lock-digest"):
            return "the lock has other wheels than the image"
        known = [*auditing.recall([cell], inputs).values()]
        return known[0] if known else f"run imagefactory audit {name}"
    except FactoryError as error:
        return error.problems[0].what


def _before(
    engine: Engine, image: Anatomy, receipts: ReceiptStore, found: Found | Refused | None
) -> Before | None:
    """The image of the same cell that was verified last before this one."""
    cell = image.labels.get(f"{LABEL}.cell")
    others = [one.receipt for one in receipts.of_cell(cell)] if cell else []
    until = found.receipt.verified_at if isinstance(found, Found) else None
    earlier = [
        one
        for one in others
        if one.digest != image.digest and (until is None or one.verified_at < until)
    ]
    if not earlier:
        return None
    last = earlier[-1]
    try:
        is_here = last.digest in engine.find_images([last.digest])
        old = inspecting.look(engine, last.digest) if is_here else None
    except FactoryError:  # such as an image that was unpacked in part; its receipt says enough
        old = None
    changed = anatomy.compare(old, image, pin_prefix=f"{LABEL}.pin.") if old else None
    return Before(receipt=last, difference=changed)


def sbom(workspace: Workspace, what: str) -> bytes:
    """The SBOM of a cell, made from the lock, or the one that is attached to a pushed image."""
    from imagefactory.publishing import sbom as making  # noqa: PLC0415 - only used here
    from imagefactory.system.registry import Registries  # noqa: PLC0415 - rarely used

    declared = matrix.load(workspace.matrix) if workspace.matrix.exists() else None
    if declared and what in {cell.name for cell in declared.cells}:
        return making.make(check(workspace, [what])[0])
    name, wanted = vouching.reference_of(what, declared.repository if declared else "")
    engine = opening.connect_if_any(workspace)
    registries = engine.registries if engine else Registries()
    image = vouching.read_image(registries, name, wanted)
    trust = opening.receipts(workspace).trust
    content = attachments.sbom_of(registries, name, image.digest, trust) if image else None
    if content is None:
        why = "has no SBOM attached" if image else "is not in its registry"
        fix = "imagefactory push attaches one"
        raise fail(CheckFailedError, "sbom-missing", f"{what} {why}", fix=fix)
    return content


def survey_registry(
    workspace: Workspace,
    repository: str | None,
    keep: retention.Keep,
    now: datetime,
    pinned: Mapping[str, str],
) -> tuple[Repository, retention.Plan]:
    """Find what can be removed from a repository; also returns the repository."""
    found = repository_of(workspace, matrix.load(workspace.matrix), repository)
    return found, retention.survey(found, keep, now, pinned)


def repository_of(workspace: Workspace, declared: Matrix, name: str | None) -> Repository:
    """The matrix's repository, or ``name``. Raises InputError if that is none."""
    from imagefactory.system.registry import Registries  # noqa: PLC0415 - rarely used

    if name is not None:
        pipeline.check_repository(name, "--repository")
    engine = opening.connect_if_any(workspace)  # the private one has credentials of its own
    return Repository(
        name=name or declared.repository,
        registries=engine.registries if engine else Registries(),
        moving=declared.moving_tags,
        receipts=opening.receipts(workspace),
        state=workspace.settings.state,
        needed=_needed,
    )


def _needed(channel: str) -> Sequence[Requirement]:
    """What a receipt must have for a torch channel."""
    from imagefactory.verifying import check_registry  # noqa: PLC0415 - imports NumPy

    return check_registry.requirements(channel)
