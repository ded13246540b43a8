"""The wheel station: builds the wheels that cells need, and records them in the lock."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from imagefactory.errors import FactoryError, InputError, fail
from imagefactory.locking.lock import Lock
from imagefactory.matrix.cell import Cell
from imagefactory.planning import planning
from imagefactory.planning.planning import Inputs
from imagefactory.planning.wheel_plan import Trial, WheelPlan
from imagefactory.wheels import make
from imagefactory.wheels.make import BuildEnv, Made, Tried

#: Prepares the build environment for a wheel of a cell.
EnvFor = Callable[[Cell, WheelPlan], BuildEnv]


def make_wheels(
    cells: Sequence[Cell],
    inputs: Inputs,
    env_for: EnvFor,
    *,
    write: Callable[[Lock], None],
    again: bool = False,
) -> tuple[Lock, tuple[Made, ...]]:
    """Build the wheels of ``cells`` that are missing; returns the lock with them in it.

    ``write`` is called with the lock after each wheel, as compiling one may take hours. Raises
    CheckFailedError if one cannot be built, or differs from the locked wheel; SetupError if it
    has to be compiled on another platform.
    """
    lock, made = inputs.lock, dict[str, Made]()
    plans = ((cell, plan) for cell in cells for plan in planning.plan_wheels(cell, inputs))
    for cell, wanted in plans:
        if wanted.key in made:
            continue
        existing = None if again else make.find_made(wanted, lock, inputs.settings)
        made[wanted.key] = existing or make.make(wanted, lock, env_for(cell, wanted), again=again)
        new = with_built(lock, list(made.values()), _wanted_keys(inputs))
        if new != lock:
            write(new)
            lock = new
    return lock, tuple(made.values())


def compile_units(cell: Cell, inputs: Inputs, env_for: EnvFor, trial: Trial) -> Tried:
    """Compile single units of the cell's vLLM to inspect the result; no wheel is built.

    Raises InputError if the cell compiles nothing; otherwise as ``make_wheels``.
    """
    wanted = planning.plan_wheel(cell, inputs, trial)
    if wanted is None or not wanted.compiles:
        what = f"{cell.name} compiles nothing"
        fix = "select a cell whose flavor has `binaries: compiled`"
        raise fail(InputError, "compiles-nothing", what, where=str(cell.flavor.location), fix=fix)
    return make.compile_units(wanted, env_for(cell, wanted))


def with_built(lock: Lock, made: Sequence[Made], wanted: Collection[str]) -> Lock:
    """``lock`` with the wheels in ``made``, and those it has whose keys are in ``wanted``."""
    new = {one.built.key: one.built for one in made}
    kept = {built.key: built for built in lock.built if built.key in wanted}
    built = sorted({**kept, **new}.values(), key=lambda one: one.key)
    return replace(lock, built=tuple(built))


def _wanted_keys(inputs: Inputs) -> set[str]:
    """The keys of all wheels that cells of the matrix need."""
    try:
        return {
            plan.key for cell in inputs.matrix.cells for plan in planning.plan_wheels(cell, inputs)
        }
    except FactoryError:  # another cell has problems, so its keys are unknown: drop nothing
        return {built.key for built in inputs.lock.built}
