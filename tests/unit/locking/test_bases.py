"""Bases are locked as packages or as a digest, and stay so until they are declared differently."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pysequoia import Tsk
from support.debian import BASIC, COMPILERS, key, package, serve, write
from support.machine import settings
from support.matrices import write as write_matrix

from imagefactory.errors import FactoryError
from imagefactory.locking import bases, store
from imagefactory.locking.lock import Lock
from imagefactory.locking.locking import Renewed
from imagefactory.matrix import matrix
from imagefactory.matrix.cell import Cell, SourceBuild
from imagefactory.settings import Settings
from imagefactory.system.platforms import Platform

EMPTY = Lock(created="2026-11-20", tools=(), resolutions=())
SUITE = "    suite: trixie\n"


@pytest.fixture(scope="module")
def owner() -> Tsk:
    return key()


@pytest.fixture
def www(tmp_path: Path) -> Path:
    return tmp_path / "www"


@pytest.fixture
def machine(tmp_path: Path, www: Path, owner: Tsk) -> Iterator[Settings]:
    write(www, owner, *BASIC, package("tool"))
    with serve(www, owner) as debian:
        yield replace(settings(tmp_path), debian=debian)


@pytest.fixture
def cells(tmp_path: Path) -> tuple[Cell, ...]:
    return matrix.load(write_matrix(tmp_path)).cells


def declared(folder: Path, old: str, new: str) -> tuple[Cell, ...]:
    return matrix.load(write_matrix(folder, old, new)).cells


def unreachable(machine: Settings) -> Settings:
    mirrors = (("debian", "http://127.0.0.1:9"), ("debian-security", "http://127.0.0.1:9"))
    return replace(machine, debian=replace(machine.debian, mirrors=mirrors))


def test_every_package_is_locked_for_every_platform_and_read_back(
    machine: Settings, cells: tuple[Cell, ...], tmp_path: Path
) -> None:
    lock = bases.update(EMPTY, cells, machine)
    assert [(base.name, base.platform) for base in lock.bases] == [
        ("trixie", Platform.AMD64),
        ("trixie", Platform.ARM64),
    ]
    base = lock.bases[0]
    assert [deb.name for deb in base.debs] == ["apt", "base-files", "ca-certificates", "python3"]
    assert [deb.name for deb in base.builder] == ["git", "python3-venv"]
    assert (base.suite, base.digest, base.packages) == ("trixie", None, ("python3",))
    assert base.debs[0].path == "pool/main/a/apt/apt_1_all.deb"
    store.write(tmp_path / "wheels.lock", lock, guards=tmp_path)
    assert store.read(tmp_path / "wheels.lock") == lock


def test_a_locked_base_needs_no_network(machine: Settings, cells: tuple[Cell, ...]) -> None:
    lock = bases.update(EMPTY, cells, machine)
    assert bases.update(lock, cells, unreachable(machine)) is lock


def test_a_base_is_locked_again_when_its_packages_change(
    machine: Settings, cells: tuple[Cell, ...], tmp_path: Path
) -> None:
    old = bases.update(EMPTY, cells, machine)
    changed = declared(tmp_path, "packages: [python3]", "packages: [python3, tool]")
    assert [problem.code for problem in bases.check(old, changed, machine)][:2] == [
        "lock-uncovered",
        "lock-dead",
    ]
    new = bases.update(old, changed, machine)
    assert [str(change) for change in bases.changes(old, new)] == [
        "trixie linux/amd64: tool (none) -> 1",
        "trixie linux/arm64: tool (none) -> 1",
    ]
    assert bases.check(new, changed, machine) == []


def test_a_base_that_cannot_be_locked_as_declared_now_is_kept_as_it_was(
    machine: Settings, cells: tuple[Cell, ...], tmp_path: Path
) -> None:
    old = bases.update(EMPTY, cells, machine)
    slip = declared(tmp_path, "packages: [python3]", "packages: [python3, tol]")
    found = bases.renew(Renewed(lock=old, changes=(), failures=()), old, slip, machine)
    assert found.lock is old
    assert [(one.name, one.kept) for one in found.failures] == [("base trixie", False)]
    assert bases.update(found.lock, cells, unreachable(machine)) is old


def test_compilers_are_locked_for_bases_whose_cells_compile_wheels(
    machine: Settings, cells: tuple[Cell, ...], www: Path, owner: Tsk, tmp_path: Path
) -> None:
    write(www, owner, *BASIC, *COMPILERS)
    plain = bases.update(EMPTY, cells, machine)
    assert {base.compiler for base in plain.bases} == {None}
    one, *others = cells
    build = SourceBuild(binaries="compiled", tools="x", location=one.flavor.location)
    compiling = (replace(one, flavor=replace(one.flavor, build=build)), *others)
    lock = bases.update(plain, compiling, machine)
    names = [[deb.name for deb in base.compiler or ()] for base in lock.bases]
    assert names == 2 * [["ccache", "g++", "libhash", "libpython3-dev"]]
    assert bases.update(lock, compiling, unreachable(machine)) is lock
    assert bases.update(lock, cells, unreachable(machine)) is lock
    store.write(tmp_path / "wheels.lock", lock, guards=tmp_path)
    assert store.read(tmp_path / "wheels.lock") == lock
    assert "trixie linux/amd64: ccache (none) -> 1" in map(str, bases.changes(plain, lock))


def test_no_compiler_is_locked_that_the_base_has(
    machine: Settings, www: Path, owner: Tsk, tmp_path: Path
) -> None:
    write(www, owner, *BASIC, *COMPILERS)
    one, *_ = declared(tmp_path, "packages: [python3]", "packages: [python3, libhash]")
    build = SourceBuild(binaries="compiled", tools="x", location=one.flavor.location)
    compiling = replace(one, flavor=replace(one.flavor, build=build))
    base = bases.update(EMPTY, [compiling], machine).bases[0]
    assert "libhash" in {deb.name for deb in base.debs}
    assert [deb.name for deb in base.compiler or ()] == ["ccache", "g++", "libpython3-dev"]


def test_newer_packages_are_locked_only_when_the_base_is_upgraded(
    machine: Settings, cells: tuple[Cell, ...], www: Path, owner: Tsk
) -> None:
    old = bases.update(EMPTY, cells, machine)
    dated = replace(old, bases=tuple(replace(b, created="2026-01-01") for b in old.bases))
    assert bases.update(dated, cells, machine, upgrade=True) == dated
    write(www, owner, *BASIC, security=(package("apt", "2"),))
    assert bases.update(dated, cells, machine) == dated
    new = bases.update(dated, cells, machine, upgrade=True)
    assert [str(change) for change in bases.changes(dated, new)] == [
        "trixie linux/amd64: apt 1 -> 2",
        "trixie linux/arm64: apt 1 -> 2",
    ]
    assert {base.created for base in new.bases} != {"2026-01-01"}


def test_the_changes_of_bases_are_added_to_those_of_wheels(
    machine: Settings, cells: tuple[Cell, ...]
) -> None:
    before = bases.update(EMPTY, cells, machine)
    wheels = bases.changes(None, before)[:1]
    renewed = Renewed(lock=before, changes=tuple(wheels), failures=())
    found = bases.renew(renewed, None, cells, machine)
    assert (found.lock, found.failures) == (before, ())
    assert list(found.changes) == [*wheels, *bases.changes(None, before)]
    assert bases.renew(renewed, before, cells, machine).changes == tuple(wheels)


def test_a_new_base_is_one_change_for_each_platform(
    machine: Settings, cells: tuple[Cell, ...]
) -> None:
    lock = bases.update(EMPTY, cells, machine)
    assert [str(change) for change in bases.changes(None, lock)] == [
        "trixie linux/amd64: base (none) -> 4 packages",
        "trixie linux/arm64: base (none) -> 4 packages",
    ]


def test_a_package_that_is_gone_is_found_by_the_check(
    machine: Settings, cells: tuple[Cell, ...], www: Path
) -> None:
    lock = bases.update(EMPTY, cells, machine)
    assert bases.check(lock, cells, machine) == []
    (www / "debian" / lock.bases[0].debs[0].path).unlink()
    (problem,) = bases.check(lock, cells, machine)
    assert (problem.code, problem.where) == ("debian-gone", "apt 1")


def test_a_registry_that_does_not_answer_is_a_clear_error(
    machine: Settings, tmp_path: Path
) -> None:
    cells = declared(tmp_path, SUITE, "    image: 127.0.0.1:9/debian:slim\n")
    with pytest.raises(FactoryError) as caught:
        bases.update(EMPTY, cells, machine)
    assert caught.value.problems[0].code == "registry-unreachable"


def test_a_package_that_the_suite_lacks_is_reported_with_the_base(
    machine: Settings, tmp_path: Path
) -> None:
    cells = declared(tmp_path, "packages: [python3]", "packages: [python4]")
    with pytest.raises(FactoryError) as caught:
        bases.update(EMPTY, cells, machine)
    (problem,) = caught.value.problems
    assert (problem.code, problem.where) == ("debian-no-package", "trixie linux/amd64")
