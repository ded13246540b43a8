"""A lock is closed: all that its wheels require of each other is in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from support import ROOT, projects
from support.index import serve, wheels_of_matrix
from support.machine import DOWN, settings
from support.matrices import write

from imagefactory.errors import InputError
from imagefactory.locking import closure, locking, store
from imagefactory.locking.lock import LockedOverride, Resolution
from imagefactory.matrix import matrix
from imagefactory.matrix.cell import Cell
from imagefactory.planning import planning
from imagefactory.system.platforms import Platform


@pytest.fixture
def cells(tmp_path: Path) -> tuple[Cell, ...]:
    return matrix.load(write(tmp_path)).cells


@pytest.fixture
def closed(cells: Sequence[Cell]) -> Resolution:
    return projects.resolution_of(cells[0])


def without(part: Resolution, name: str) -> Resolution:
    return replace(part, wheels=tuple(wheel for wheel in part.wheels if wheel.name != name))


def with_wheel(part: Resolution, name: str, version: str, *requires: str) -> Resolution:
    wheels = (*without(part, name).wheels, projects.wheel(name, version, *requires))
    return replace(part, wheels=wheels)


def test_a_closed_resolution_lacks_nothing(closed: Resolution) -> None:
    assert closure.lacking(closed) == ()


@pytest.mark.parametrize("name", ["numpy", "torch", "vllm"])
def test_a_deleted_wheel_is_missed_by_what_requires_it(closed: Resolution, name: str) -> None:
    found = closure.problems(without(closed, name))
    assert {problem.code for problem in found} == {"lock-incomplete"}
    assert all(f"requires {name}" in problem.what for problem in found)
    assert all(problem.fix == "imagefactory lock" for problem in found)


def test_every_wheel_of_the_committed_lock_is_missed_when_it_is_deleted() -> None:
    lock = store.read(ROOT / "wheels.lock")
    assert list(closure.of_lock(lock)) == []
    smallest = min(lock.resolutions, key=lambda one: len(one.wheels))
    for wheel in smallest.wheels:
        assert closure.lacking(without(smallest, wheel.name)), wheel.name


def test_another_version_does_not_meet_a_requirement(closed: Resolution) -> None:
    (text, *_) = closure.lacking(with_wheel(closed, "numpy", "0.9"))
    assert text == "vllm 0.22.1 requires numpy>=1.0, but it has numpy 0.9"


def test_an_override_replaces_a_requirement_or_drops_it(closed: Resolution) -> None:
    def overridden(requirement: str, *, drop: bool) -> tuple[str, ...]:
        override = LockedOverride(requirement=requirement, drop=drop, reason="r")
        return closure.lacking(replace(without(closed, "numpy"), overrides=(override,)))

    assert overridden("numpy", drop=True) == ()
    assert overridden("numpy>=5", drop=False) == (
        "vllm 0.22.1 requires numpy>=5, which has no wheel in it",
    )


def test_what_is_required_depends_on_markers_and_on_the_extras_that_are_asked_for() -> None:
    lines = {
        "app": ["web[fast]>=1", "arm; platform_machine == 'aarch64'", "old; python_version<'3.9'"],
        "web": ["fast-http>2; extra == 'fast'", "tests; extra == 'test'", "not a requirement"],
        "fast-http": [],
        "arm": [],
    }
    target = closure.environment(Platform.ARM64, "3.13")
    assert closure.active(lines, ["app"], (), target) == {
        "app": ("arm", "web[fast]>=1"),
        "web": ("fast-http>2",),
        "fast-http": (),
        "arm": (),
    }


def test_a_plan_of_an_incomplete_lock_is_refused(tmp_path: Path) -> None:
    declared = matrix.load(projects.write(tmp_path))
    lock = store.read(tmp_path / "wheels.lock")
    broken = replace(lock, resolutions=tuple(without(r, "numpy") for r in lock.resolutions))
    inputs = planning.Inputs(
        matrix=declared,
        lock=broken,
        patches={},
        templates=(),
        project=tmp_path,
        settings=settings(tmp_path, DOWN),
    )
    with pytest.raises(InputError) as caught:
        planning.split(declared.cells, inputs)
    assert {problem.code for problem in caught.value.problems} == {"lock-incomplete"}


@pytest.mark.programs
def test_locking_records_what_wheels_require_and_adds_what_is_missing(
    tmp_path: Path, cells: tuple[Cell, ...]
) -> None:
    with serve(wheels_of_matrix(tmp_path / "files"), tmp_path / "www") as url:
        here = settings(tmp_path, url)
        lock, _ = locking.update(None, cells[:1], here)
        (one,) = lock.resolutions
        vllm = one.wheel("vllm")
        assert vllm is not None
        assert vllm.requires == ("leaf",)
        broken = replace(lock, resolutions=(without(one, "leaf"),))
        assert "lock-incomplete" in {p.code for p in locking.check(broken, cells[:1], here)}
        again, _ = locking.update(broken, cells[:1], here)
        assert again.resolutions == lock.resolutions
        unrecorded = tuple(replace(wheel, requires=None) for wheel in one.wheels)
        old = replace(lock, resolutions=(replace(one, wheels=unrecorded),))
        assert "lock-incomplete" in {p.code for p in locking.check(old, cells[:1], here)}
        assert locking.update(old, cells[:1], here)[0].resolutions == lock.resolutions
