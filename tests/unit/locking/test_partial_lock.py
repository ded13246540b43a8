"""What can be resolved is locked, whatever else fails; nothing that was locked gets lost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.index import serve, torch, wheel, wheels_of_matrix, write_pages
from support.machine import DOWN, settings
from support.matrices import write as write_matrix
from support.plans import base_image, inputs_with

from imagefactory.errors import CheckFailedError, InputError, SetupError
from imagefactory.locking import locking, store
from imagefactory.locking.lock import Lock
from imagefactory.locking.locking import Renewed
from imagefactory.matrix import matrix
from imagefactory.matrix.cell import Cell, Toolchain
from imagefactory.planning import planning
from imagefactory.settings import Settings
from imagefactory.system.platforms import Platform
from imagefactory.system.yamlfile import Location

pytestmark = pytest.mark.programs


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = wheels_of_matrix(tmp_path / "files")
    wheel(folder, "nvcc", "1")
    return folder


@pytest.fixture
def using(tmp_path: Path, files: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    with serve(files, tmp_path / "www") as url:
        yield settings(tmp_path, url)


@pytest.fixture
def cells(tmp_path: Path) -> tuple[Cell, ...]:
    return matrix.load(write_matrix(tmp_path)).cells


def requiring(cell: Cell, more: str) -> Cell:
    flavor = replace(cell.flavor, requirements=(*cell.flavor.requirements, more))
    return replace(cell, flavor=flavor, requirements=(*cell.requirements, more))


def broken(cell: Cell) -> Cell:
    """``cell`` with a requirement that nothing satisfies."""
    return requiring(cell, "nowhere>=3")


def toolchain(name: str, requirement: str) -> Toolchain:
    here = Location(file="matrix.yaml", line=7)
    platforms = (Platform.AMD64,)
    return Toolchain(name=name, requirements=(requirement,), platforms=platforms, location=here)


def outcome(renewed: Renewed) -> list[tuple[str, bool]]:
    return [(failure.name, failure.kept) for failure in renewed.failures]


def test_one_cell_without_a_solution_stays_unlocked_and_the_others_are_locked(
    using: Settings, cells: tuple[Cell, ...]
) -> None:
    bad = broken(cells[0])
    renewed = locking.renew(None, [bad, *cells[1:]], using)
    assert renewed.lock.uncovered([bad, *cells[1:]]) == (bad,)
    assert renewed.lock.unpacker_version == "0.13.8"
    (failure,) = renewed.failures
    assert (failure.cells, failure.kept) == ((bad.name,), False)
    assert str(failure).endswith(f"({bad.name}): not locked")
    assert isinstance(renewed.error, CheckFailedError)
    (problem,) = renewed.error.problems
    assert problem.code == "lock-unsatisfiable"
    assert "matrix.yaml:" in str(problem.where)


def test_pins_that_contradict_upstream_leave_out_only_their_cell(
    tmp_path: Path, files: Path, using: Settings, cells: tuple[Cell, ...]
) -> None:
    wheel(files, "vllm", "0.22.1", requires=("torch==2.10.0",))
    write_pages(files, tmp_path / "www")
    renewed = locking.renew(None, cells, using)
    assert renewed.lock.uncovered(cells) == cells[:1]
    assert isinstance(renewed.error, InputError)
    with pytest.raises(InputError):
        locking.update(None, cells, using)


def test_a_failed_upgrade_keeps_the_old_wheels_of_that_cell_and_upgrades_the_others(
    tmp_path: Path, files: Path, using: Settings, cells: tuple[Cell, ...]
) -> None:
    lock = locking.renew(None, cells, using).lock
    wheel(files, "leaf", "2.0")
    torch(files, "2.14.0", "cpu", None)
    write_pages(files, tmp_path / "www")
    renewed = locking.renew(lock, cells, using, upgrade=True)
    assert [kept for _, kept in outcome(renewed)] == [True]
    assert renewed.lock.uncovered(cells) == ()
    versions = {r.name[-6:]: r.wheel("leaf") for r in renewed.lock.resolutions}
    assert {name: leaf and leaf.version for name, leaf in versions.items()} == {
        "0.22.1": "2.0",
        "0.33.0": "1.0",
        "0.23.0": "2.0",
    }
    assert isinstance(renewed.error, CheckFailedError)


def test_without_a_network_nothing_gets_lost(
    tmp_path: Path, using: Settings, cells: tuple[Cell, ...]
) -> None:
    tools = [toolchain("cuda", "nvcc==1")]
    lock = locking.renew(None, cells[:1], using, toolchains=tools).lock
    away = settings(tmp_path, DOWN)
    upgraded = locking.renew(lock, cells[:1], away, toolchains=tools, upgrade=True)
    assert upgraded.lock is lock
    assert upgraded.changes == ()
    assert {kept for _, kept in outcome(upgraded)} == {True}
    assert isinstance(upgraded.error, SetupError)
    other = [requiring(cell, "leaf<3") for cell in cells[:1]]
    changed = locking.renew(lock, other, away, toolchains=[toolchain("cuda", "nvcc==2")])
    assert changed.lock is lock
    assert {kept for _, kept in outcome(changed)} == {False}


def test_the_wheels_of_a_failed_change_are_dropped_once_it_succeeds(
    using: Settings, cells: tuple[Cell, ...]
) -> None:
    lock = locking.renew(None, cells, using).lock
    bad = [broken(cells[0]), *cells[1:]]
    failed = locking.renew(lock, bad, using).lock
    assert len(failed.resolutions) == 3
    assert failed.uncovered(bad) == (bad[0],)
    fixed = locking.renew(failed, cells[1:], using)
    assert len(fixed.lock.resolutions) == 2
    assert fixed.error is None


def test_a_toolchain_or_the_unpacker_that_fails_stops_no_cell(
    tmp_path: Path, files: Path, using: Settings, cells: tuple[Cell, ...]
) -> None:
    next(files.glob("uv-*")).unlink()
    write_pages(files, tmp_path / "www")
    tools = [toolchain("bad", "nowhere==1"), toolchain("good", "nvcc==1")]
    renewed = locking.renew(None, cells[:1], using, toolchains=tools)
    assert renewed.lock.uncovered(cells[:1]) == ()
    assert [one.name for one in renewed.lock.toolchains] == ["good"]
    assert [name for name, _ in outcome(renewed)] == [
        "bad linux/amd64",
        "the uv that unpacks wheels",
    ]


def test_a_partial_lock_is_the_same_bytes_each_time(
    using: Settings, cells: tuple[Cell, ...]
) -> None:
    mixed = [broken(cells[0]), *cells[1:]]
    first, second = (locking.renew(None, mixed, using).lock for _ in range(2))
    assert store.dumps(first) == store.dumps(second)


def test_an_unlocked_cell_blocks_only_itself(
    tmp_path: Path, cells: tuple[Cell, ...], using: Settings
) -> None:
    locked = {
        base_image(cell.flavor.base, cell.platform, suite=cell.flavor.base.suite).locked
        for cell in cells
    }
    lock = replace(locking.renew(None, cells[1:], using).lock, bases=tuple(locked))
    covered, (left_out,) = planning.split(cells, inputs_with(lock, using))
    assert tuple(covered) == cells[1:]
    assert left_out.cell == cells[0]
    row = left_out.as_dict()
    assert (row["cell"], row["action"], row["build_key"]) == (cells[0].name, "blocked", None)
    assert "no resolution" in left_out.reason
    empty = Lock(created="", tools=(), resolutions=())
    with pytest.raises(InputError) as caught:
        planning.split(cells, inputs_with(empty, settings(tmp_path)))
    assert len(caught.value.problems) == 3
