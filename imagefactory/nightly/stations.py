"""The stations as a night calls them: each for one cell, and what it did in one line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from packaging.version import Version

from imagefactory import opening, pipeline, workflows
from imagefactory.errors import CheckFailedError, FactoryError, InputError, Problem, SetupError
from imagefactory.matrix import matrix
from imagefactory.matrix.cell import Cell
from imagefactory.matrix.matrix import Matrix
from imagefactory.matrix.moving_tags import NIGHTLY, VERIFIED, MovingTag, is_named
from imagefactory.nightly import takeover
from imagefactory.nightly.values import (
    Broken,
    Done,
    Job,
    Need,
    Stations,
    Target,
    Targets,
    broken,
)
from imagefactory.patching import catalog, port
from imagefactory.patching.check import Checked
from imagefactory.patching.measure import Measured
from imagefactory.planning.cell_plan import LABEL, CellPlan
from imagefactory.planning.decision import Action, Decision
from imagefactory.publishing import tags, vouching
from imagefactory.publishing.moving import Repository
from imagefactory.results import Planned, Watcher
from imagefactory.system import files
from imagefactory.verifying import receipt
from imagefactory.workspace import Workspace

#: Lines at the end of a log that are in the report, and bytes of a log that are read.
LOG_LINES, LOG_BYTES = 20, 100_000_000


def real(job: Job) -> Stations:
    """The stations for a job."""
    asked = f"{job.to} {job.push}"
    return Stations(
        detect=lambda workspace: takeover.detect(workspace, asked, job.now),
        take=lambda workspace: takeover.take(workspace, job.now),
        patches=port_drifted,
        targets=partial(targets, job=job),
        build=build,
        verify=verify,
        push=partial(push, to=job.to),
        promote=partial(promote, job=job),
    )


def port_drifted(workspace: Workspace) -> Done:
    """Check the patches of the cells that changed, and port those that do not apply any more."""
    decisions, _ = _planned(workspace)
    lines, failed, stops = list[str](), list[Broken](), list[str]()
    tried: dict[tuple[str, str], Broken | None] = {}
    for name in [one.plan.cell.name for one in decisions if one.action is Action.BUILD]:
        try:
            (checked,) = workflows.check_patches(workspace, [name])
        except SetupError as error:
            lines.append(f"patches of {name} are checked by its build: {error.problems[0].what}")
            continue
        for row, problem in _drifted(checked):
            if (row.patch, row.version) not in tried:
                did, wrong = _port(workspace, row, problem)
                tried[row.patch, row.version] = wrong
                lines += did
                failed += [wrong] if wrong else []
            if tried[row.patch, row.version]:
                stops.append(name)
    return Done(lines=tuple(lines), broken=tuple(failed), stops=tuple(dict.fromkeys(stops)))


def _drifted(checked: Checked) -> Iterator[tuple[Measured, Problem]]:
    rows = [row for row in checked.rows if row.state.stops_build]
    yield from zip(rows, checked.problems, strict=True)


def _port(workspace: Workspace, row: Measured, problem: Problem) -> tuple[list[str], Broken | None]:
    """Port a patch; what was done, or what is left for a person, with the hunk."""
    patch = catalog.find(catalog.load(*workspace.patches), row.patch)
    where = f"{row.patch} on {row.project} {row.version}"
    try:
        bench, settings = opening.bench(workspace, [patch]), workspace.settings
        done = port.port(patch, row.version, workspace.own_patches, bench, settings)
    except FactoryError as error:  # a work tree of an earlier night may wait for a person
        found = broken(where, "port", error)
        return [], replace(found, problems=(problem, *found.problems))
    if done.done:
        return [f"{done.patch} on {done.version}: {done.outcome}, {done.did}"], None
    since = f"made for {done.base}, on {done.version}" if done.base else f"on {done.version}"
    left = replace(
        problem, what=f"{done.outcome} ({since}): {done.did}", detail=done.detail or problem.detail
    )
    return [], Broken(where=where, step="port", problems=(left,))


def targets(workspace: Workspace, *, job: Job) -> Targets:
    """What each cell still needs, and which cell each tag that a night moves is for."""
    declared = matrix.load(workspace.matrix)
    decisions, failed = _planned(workspace)
    repository = workflows.repository_of(workspace, declared, job.to) if job.push else None
    return Targets(
        cells=tuple(
            Target(cell=one.plan.cell.name, need=_need(one, repository)) for one in decisions
        ),
        tags=nightly_tags(declared),
        broken=tuple(failed),
    )


def nightly_tags(declared: Matrix) -> tuple[tuple[str, str], ...]:
    """The moving tags of a night, each with the cell of the newest vLLM that may have it."""
    best: dict[str, Cell] = {}
    for moving in (one for one in declared.moving_tags if one.nightly):
        for cell in declared.cells:
            tag = moving.of(cell.named)
            if tag and (tag not in best or _rank(cell, tag) > _rank(best[tag], tag)):
                best[tag] = cell
    return tuple((tag, cell.name) for tag, cell in best.items())


def _rank(cell: Cell, tag: str) -> tuple[bool, Version]:
    """By its vLLM: any version is preferred to a git ref, and but for `nightly`, a release to all.

    Two templates may give one tag, which then is for the newest cell of both.
    """
    version = Version("0.dev0" if cell.ref else cell.vllm)
    return is_named(tag, NIGHTLY) or not version.is_prerelease, version


def _planned(workspace: Workspace) -> tuple[list[Decision], list[Broken]]:
    """What a build would do for each cell; a cell that cannot be planned stops no other."""
    try:
        planned = pipeline.plan(workspace, [], allow_uncovered=True)
    except InputError:
        return _one_by_one(workspace)
    return list(planned.decisions), list(_uncovered(planned))


def _one_by_one(workspace: Workspace) -> tuple[list[Decision], list[Broken]]:
    decisions, failed = list[Decision](), list[Broken]()
    for cell in matrix.load(workspace.matrix).cells:
        try:
            decisions += pipeline.plan(workspace, [cell.name]).decisions
        except InputError as error:
            failed.append(broken(cell.name, "plan", error))
    return decisions, failed


def _uncovered(planned: Planned) -> Iterator[Broken]:
    for one in planned.uncovered:
        yield Broken(where=one.cell.name, step="plan", problems=one.problems)


def _need(decision: Decision, repository: Repository | None) -> Need:
    if repository and _is_published(decision.plan, repository):
        return Need.NOTHING
    return Need.BUILD if decision.action is Action.BUILD else Need.VERIFY


def _is_published(plan: CellPlan, repository: Repository) -> bool:
    """Whether the registry has the image under all its tags, and a receipt vouches for it."""
    registries, name = repository.registries, repository.name
    where = plan.cell.locations["vllm"]
    verified = MovingTag(template=NIGHTLY, when={}, level=VERIFIED, location=where)
    try:
        image = vouching.read_image(registries, name, tags.of_plan(plan))
        if image is None or image.labels.get(f"{LABEL}.build-key") != plan.build_key:
            return False
        vouching.require(image, verified, registries, repository.receipts, repository.needed)
        own = [registries.document(f"{name}:{one.rpartition(':')[2]}") for one in plan.cell.tags]
    except FactoryError:  # whether it can be reached shows when it is pushed to
        return False
    return all(one is not None and one.digest == image.digest for one in own)


def build(workspace: Workspace, cell: str) -> str:
    """Build a cell; an error has the last lines of its log."""
    built = pipeline.build(workspace, [cell], Watcher(), skip_verify=True)
    if built.error:
        logs = {one.problem: _log_end(one.log) for one in built.results.values() if not one.ok}
        raise type(built.error)(
            replace(one, detail=logs.get(one) or one.detail) for one in built.error.problems
        )
    return "".join(f"built in {one.seconds:.0f} s" for one in built.results.values()) or "built"


def _log_end(path: Path) -> str:
    try:
        text = files.read_text(path, LOG_BYTES)
    except (OSError, UnicodeDecodeError):
        return ""
    return "\n".join(text.splitlines()[-LOG_LINES:])


def verify(workspace: Workspace, cell: str) -> str:
    """Verify a cell's image, unless exactly this digest has passed."""
    planned = pipeline.plan(workspace, [cell], allow_no_engine=False)
    if any(one.action is not Action.SKIP for one in planned.decisions):
        what, fix = f"the image of {cell} is not there any more", "run it again"
        raise SetupError(Problem(code="nightly-no-image", where=cell, what=what, fix=fix))
    receipts = pipeline.verify_new(workspace, planned, {}, Watcher())
    problems = receipt.problems(receipts)
    if problems:
        raise CheckFailedError(problems)
    return "verified" if receipts else "verified before"


def push(workspace: Workspace, cell: str, *, to: str | None) -> str:
    """Push a cell's image under its immutable tag and those of its cell."""
    done = pipeline.push(workspace, [cell], to)
    if done.error:
        raise done.error
    return f"pushed {done.pushed[0].reference}" if done.pushed else "pushed"


def promote(workspace: Workspace, cell: str, tag: str, *, job: Job) -> str:
    """Give a moving tag to a cell's image, which must be in the registry and verified.

    A tag that a rollback took from this image stays where it is.
    """
    try:
        done = workflows.promote(workspace, cell, tag, job.to, job.now, unattended=True)
    except CheckFailedError as error:
        (problem,) = error.problems
        if problem.code != "promote-taken-back":
            raise
        return f"`{tag}` stays where it was: {problem.what}; {problem.fix}"
    return f"`{tag}` {'is now' if done.moved else 'stays'} {done.image} ({done.digest[:19]})"
