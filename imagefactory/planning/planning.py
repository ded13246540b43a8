"""The planning station: turns cells into plans, which fix everything that determines an image."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from imagefactory.errors import FactoryError, InputError, Problem, fail
from imagefactory.locking import closure, refs
from imagefactory.locking.lock import NO_UNPACKER, Lock, LockedToolchain, Resolution
from imagefactory.matrix.cell import Base, Cell, request_of
from imagefactory.matrix.matrix import Matrix
from imagefactory.patching import catalog
from imagefactory.patching.catalog import Catalog
from imagefactory.patching.patch import Step
from imagefactory.planning import (
    cell_plan,
    extra_plan,
    vllm_problems,
    vllm_settings,
    wheel_plan,
)
from imagefactory.planning.cell_plan import BaseImage, CellPlan
from imagefactory.planning.decision import Uncovered
from imagefactory.planning.wheel_plan import Trial, WheelPlan
from imagefactory.settings import Settings
from imagefactory.system.platforms import Platform

#: The code of everything that a lock may lack.
UNCOVERED = "lock-uncovered"
#: What keeps a cell from being built, and no other.
LACKING = (UNCOVERED, closure.INCOMPLETE, refs.REFUSED)
#: The name and platform of a base.
Key = tuple[str, Platform]
Bases = Mapping[Key, BaseImage]


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What plans are made from, as read from the user's files.

    Attributes:
        matrix: the whole matrix.
        lock: the whole lock.
        patches: every patch, by name.
        templates: folders of Dockerfile templates, searched in this order.
        project: the folder that the matrix's relative paths start from.
        settings: the machine's folders and indexes.
    """

    matrix: Matrix
    lock: Lock
    patches: Catalog
    templates: tuple[Path, ...]
    project: Path
    settings: Settings

    @cached_property
    def uv_version(self) -> str:
        """Version of the uv that unpacks wheels in a build.

        Raises InputError if the lock does not pin it.
        """
        version = self.lock.unpacker_version
        if version is None:
            where, fix = "wheels.lock", "imagefactory lock"
            raise fail(InputError, UNCOVERED, NO_UNPACKER, where=where, fix=fix)
        return version


def split(cells: Sequence[Cell], inputs: Inputs) -> tuple[list[Cell], tuple[Uncovered, ...]]:
    """The cells that the lock covers, and the others; those block nothing but themselves.

    Raises InputError if the lock covers none of them, or lacks what all of them need.
    """
    covered: list[Cell] = []
    uncovered: list[Uncovered] = []
    for cell in cells:
        problems = _lacking(cell, inputs)
        if problems:
            uncovered.append(Uncovered(cell=cell, problems=problems))
        else:
            covered.append(cell)
    if uncovered and not covered:
        raise InputError(dict.fromkeys(problem for one in uncovered for problem in one.problems))
    return covered, tuple(uncovered)


def _lacking(cell: Cell, inputs: Inputs) -> tuple[Problem, ...]:
    """What the lock lacks for ``cell``; other problems are left to ``plan``."""
    try:
        _resolution(cell, inputs)
        _toolchain(cell, inputs)
        plan_wheels(cell, inputs)
        base_of(bases([cell], (), inputs.lock), cell.flavor.base, cell.platform)
    except FactoryError as error:
        return tuple(problem for problem in error.problems if problem.code in LACKING)
    return ()


def bases(cells: Iterable[Cell], platforms: Iterable[Platform], lock: Lock) -> dict[Key, BaseImage]:
    """The bases of ``cells``, for their own platforms and for ``platforms``, as far as locked."""
    wanted = {(cell.flavor.base, cell.platform) for cell in cells}
    wanted |= {(base, platform) for base, _ in wanted for platform in platforms}
    rows = ((base, lock.base(base, platform)) for base, platform in wanted)
    return {
        (base.name, locked.platform): cell_plan.base_image(base, locked)
        for base, locked in rows
        if locked
    }


def base_of(bases: Bases, base: Base, platform: Platform) -> BaseImage:
    """One of ``bases``. Raises InputError if the lock lacks it."""
    found = bases.get((base.name, platform))
    if found is None:
        what = f"wheels.lock has no base {base.name} for {platform}"
        fix = "run imagefactory lock; an image must exist for the build platform, too"
        where = str(base.where("suite") or base.where("image") or "wheels.lock")
        raise fail(InputError, "lock-uncovered", what, where=where, fix=fix)
    return found


def plan(cells: Sequence[Cell], bases: Bases, inputs: Inputs) -> tuple[CellPlan, ...]:
    """Plan each cell. Raises InputError with the problems of all cells at once."""
    plans: list[CellPlan] = []
    problems: list[Problem] = []
    for cell in cells:
        try:
            base = base_of(bases, cell.flavor.base, cell.platform)
            plans.append(_plan_cell(cell, base, inputs))
        except FactoryError as error:
            problems += error.problems
    problems += _ignored_settings(plans, inputs)
    if problems:
        raise InputError(dict.fromkeys(problems))
    return tuple(plans)


def installed(cell: Cell, inputs: Inputs) -> Resolution:
    """The wheels that the image of ``cell`` installs, with those that are built for it.

    Raises InputError if they are not locked, or one of these has not been built.
    """
    return _installed(cell, catalog.series(inputs.patches, cell), inputs)


def plan_wheel(cell: Cell, inputs: Inputs, trial: Trial | None = None) -> WheelPlan | None:
    """Plan the vLLM wheel to build for ``cell``; None if that comes from an index.

    Raises InputError if the lock lacks its resolution, sources or build tools.
    """
    if cell.build is None:
        return None
    series = catalog.series(inputs.patches, cell)
    return _plan_wheel(cell, _resolution(cell, inputs), series, inputs, trial)


def plan_wheels(cell: Cell, inputs: Inputs) -> tuple[WheelPlan, ...]:
    """Plan all wheels to build for ``cell``: that of vLLM first, if any, then the extras.

    Raises InputError if the lock lacks the resolution, or sources or build tools of a wheel.
    """
    if cell.build is None and not cell.flavor.extras:
        return ()
    series = catalog.series(inputs.patches, cell)
    return _plan_wheels(cell, _resolution(cell, inputs), series, inputs)


def _plan_cell(cell: Cell, base: BaseImage, inputs: Inputs) -> CellPlan:
    series = catalog.series(inputs.patches, cell)
    return cell_plan.compose(
        cell,
        _installed(cell, series, inputs),
        series,
        base,
        templates=inputs.templates,
        toolchain=_toolchain(cell, inputs),
    )


def _resolution(cell: Cell, inputs: Inputs) -> Resolution:
    found = inputs.lock.find(request_of(cell))
    if found is None:
        what = f"wheels.lock has no resolution for {cell.name}"
        where = str(cell.locations["vllm"])
        raise fail(InputError, UNCOVERED, what, where=where, fix="imagefactory lock")
    incomplete = closure.problems(found)
    if incomplete:
        raise InputError(incomplete)
    if cell.ref:
        locked = inputs.lock.ref(cell.ref)
        refused = [*refs.problems(cell, locked, found)] if locked else [refs.not_locked(cell.ref)]
        if refused:
            raise InputError(refused)
    return found


def _plan_wheel(
    cell: Cell,
    resolution: Resolution,
    series: Sequence[Step],
    inputs: Inputs,
    trial: Trial | None = None,
) -> WheelPlan | None:
    return wheel_plan.compose(
        cell,
        resolution,
        series,
        inputs.lock,
        templates=inputs.templates,
        project=inputs.project,
        uv_version=inputs.uv_version,
        trial=trial,
    )


def _plan_wheels(
    cell: Cell, resolution: Resolution, series: Sequence[Step], inputs: Inputs
) -> tuple[WheelPlan, ...]:
    own = _plan_wheel(cell, resolution, series, inputs)
    extras = (
        extra_plan.compose(
            extra,
            cell,
            resolution,
            inputs.lock,
            templates=inputs.templates,
            project=inputs.project,
            uv_version=inputs.uv_version,
        )
        for extra in cell.flavor.extras
    )
    return (*([own] if own else []), *extras)


def _installed(cell: Cell, series: Sequence[Step], inputs: Inputs) -> Resolution:
    resolution = _resolution(cell, inputs)
    for wanted in _plan_wheels(cell, resolution, series, inputs):
        built = inputs.lock.built_for(wanted.key)
        if built is None:
            what = f"{cell.name} needs a wheel of {wanted.title} that has not been built"
            fix = f"imagefactory wheel --select {cell.name}"
            raise fail(InputError, "wheel-not-made", what, where=str(wanted.where), fix=fix)
        resolution = resolution.with_built(built)
    return resolution


def _toolchain(cell: Cell, inputs: Inputs) -> LockedToolchain | None:
    """The toolchain that images of the cell's flavor include."""
    name = cell.flavor.toolchain
    if name is None:
        return None
    declared = next(one for one in inputs.matrix.toolchains if one.name == name)
    locked = inputs.lock.toolchain(name, cell.platform)
    if locked is None or not locked.answers(declared, cell.platform):
        what = f"{cell.name} needs toolchain {name}, which is not locked for {cell.platform}"
        fix = f"add {cell.platform} to its `platforms` if missing, then run imagefactory lock"
        where = str(declared.location)
        raise fail(InputError, UNCOVERED, what, where=where, fix=fix)
    incomplete = closure.problems(locked)
    if incomplete:
        raise InputError(incomplete)
    return locked


def _ignored_settings(plans: Sequence[CellPlan], inputs: Inputs) -> Iterator[Problem]:
    """Report settings of flavors that the cell's vLLM would ignore or reject.

    Sources are fetched only for cells whose flavor sets anything.
    """
    known: dict[tuple[str, str], vllm_settings.VllmSettings | None] = {}
    for one in plans:
        if not vllm_problems.settings_of(one.cell):
            continue
        key = one.cell.flavor.name, one.cell.vllm
        if key not in known:
            known[key] = vllm_settings.of_cell(one.cell, inputs.lock, inputs.settings)
        found = known[key]
        if found is not None:
            yield from vllm_problems.of_flavor(one.cell, found, one.series)
