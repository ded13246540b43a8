"""What a lock may lack for a cell: each blocks the cell, and says what to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.machine import settings
from support.plans import inputs_with
from support.project import project_lock, project_matrix, stock_patches

from imagefactory.errors import InputError
from imagefactory.locking.lock import Lock
from imagefactory.locking.locked_sources import LockedSource
from imagefactory.matrix.cell import Cell, SourceBuild
from imagefactory.planning import planning
from imagefactory.planning.planning import Inputs
from imagefactory.system.yamlfile import Location

HERE = Location(file="matrix.yaml", line=7)


def gb10() -> Cell:
    return next(cell for cell in project_matrix().cells if cell.flavor.toolchain)


def building(cell: Cell) -> Cell:
    """``cell`` with a wheel of its own, whose sources are not locked."""
    build = SourceBuild(binaries="official", tools="cuda13.0", location=HERE)
    return replace(cell, flavor=replace(cell.flavor, build=build, patches=()))


def without_wheel(lock: Lock) -> Lock:
    rows = [replace(r, wheels=r.wheels[1:]) for r in lock.resolutions]
    return replace(lock, resolutions=tuple(rows))


def without_compiler(lock: Lock) -> Lock:
    rows = [
        replace(t, wheels=tuple(w for w in t.wheels if w.name != "nvidia-cuda-nvcc"))
        for t in lock.toolchains
    ]
    assert tuple(rows) != lock.toolchains
    return replace(lock, toolchains=tuple(rows))


def with_other_compilers(lock: Lock) -> Lock:
    return replace(lock, toolchains=tuple(replace(t, requirements=("x",)) for t in lock.toolchains))


def inputs(folder: Path, lock: Lock) -> Inputs:
    return replace(inputs_with(lock, settings(folder)), patches=stock_patches())


LACKING: dict[str, tuple[Callable[[Lock], Lock], str, str]] = {
    "resolutions": (lambda lock: replace(lock, resolutions=()), "lock-uncovered", "no resolution"),
    "a wheel": (without_wheel, "lock-incomplete", "has no wheel in it"),
    "toolchains": (lambda lock: replace(lock, toolchains=()), "lock-uncovered", "needs toolchain"),
    "a compiler": (without_compiler, "lock-incomplete", "has no wheel in it"),
    "these compilers": (with_other_compilers, "lock-uncovered", "needs toolchain"),
    "bases": (lambda lock: replace(lock, bases=()), "lock-uncovered", "no base"),
}


@pytest.mark.parametrize("name", LACKING)
def test_whatever_a_lock_lacks_blocks_the_cell_that_needs_it(tmp_path: Path, name: str) -> None:
    spoil, code, says = LACKING[name]
    cell = gb10()
    assert planning.split([cell], inputs(tmp_path, project_lock())) == ([cell], ())
    with pytest.raises(InputError) as caught:
        planning.split([cell], inputs(tmp_path, spoil(project_lock())))
    problems = caught.value.problems
    assert {one.code for one in problems} == {code}
    assert says in problems[0].what
    assert problems[0].where
    assert "imagefactory lock" in (problems[0].fix or "")


def test_a_cell_that_the_lock_covers_is_planned_beside_one_that_it_does_not(
    tmp_path: Path,
) -> None:
    good, bad = gb10(), replace(building(gb10()), name="bad")
    covered, (left_out,) = planning.split([bad, good], inputs(tmp_path, project_lock()))
    assert covered == [good]
    assert left_out.cell.name == "bad"
    assert "sources" in left_out.reason
    with pytest.raises(InputError, match="sources"):
        planning.split([bad, bad], inputs(tmp_path, project_lock()))


def test_a_wheel_that_was_not_built_is_named_with_the_command_that_builds_it(
    tmp_path: Path,
) -> None:
    lock, cell = project_lock(), building(gb10())
    source = LockedSource(
        name="vllm",
        version=cell.vllm,
        filename="vllm.tar.gz",
        sha256="0" * 64,
        size=1,
        url="https://host.example/vllm.tar.gz",
    )
    given = inputs(tmp_path, replace(lock, sources=(source,)))
    wanted = planning.plan_wheel(cell, given)
    assert wanted
    with pytest.raises(InputError) as caught:
        planning.installed(cell, given)
    (problem,) = caught.value.problems
    assert (problem.code, problem.fix) == (
        "wheel-not-made",
        f"imagefactory wheel --select {cell.name}",
    )
    assert planning.plan_wheel(gb10(), given) is None
    assert planning.installed(gb10(), given) in lock.resolutions


def test_a_lock_without_the_uv_that_unpacks_is_refused(tmp_path: Path) -> None:
    found = inputs(tmp_path, project_lock())
    assert found.uv_version == project_lock().unpackers[0].wheel.version
    with pytest.raises(InputError, match="does not pin the uv"):
        _ = replace(found, lock=replace(project_lock(), unpackers=())).uv_version


def test_the_problems_of_all_cells_are_reported_at_once(tmp_path: Path) -> None:
    lock = replace(project_lock(), toolchains=())
    cells = project_matrix().cells
    given = inputs(tmp_path, lock)
    with pytest.raises(InputError) as caught:
        planning.plan([*cells, *cells], planning.bases(cells, (), lock), given)
    needing = {cell.name for cell in cells if cell.flavor.toolchain}
    assert len(caught.value.problems) == len(needing)
