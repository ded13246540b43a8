"""What is locked answers exactly one question: any other one needs another lock."""

from __future__ import annotations

import re
from dataclasses import fields, replace

import pytest
from support.plans import base_image, deb, planned
from support.project import project_lock
from support.variants import variants

from imagefactory.locking.lock import Lock, LockedToolchain, Resolution
from imagefactory.matrix.cell import Base, NamedIndex, Override, Request, Toolchain, request_of
from imagefactory.system.platforms import Platform
from imagefactory.system.yamlfile import Location

HERE = Location(file="matrix.yaml", line=1)
#: Parts of a question that no answer depends on.
FOR_PEOPLE = re.compile(r".*(\breason|\blocations?)\b.*")


def asked() -> Request:
    """A request with something in each of its fields."""
    kept = Override(requirement="numpy==2.3", drop=False, reason="a reason", location=HERE)
    dropped = Override(requirement="xformers", drop=True, reason="a reason", location=HERE)
    index = NamedIndex(package="torch", name="own", url="https://host/simple")
    request = request_of(planned().cell)
    full = replace(request, overrides=(kept, dropped), indexes=(index,))
    assert all(getattr(full, field.name) for field in fields(full))
    return full


def locked(request: Request) -> Lock:
    same = {
        field.name: getattr(request, field.name)
        for field in fields(Resolution)
        if field.name in {one.name for one in fields(request)}
    }
    return Lock(created="", tools=(), resolutions=(replace(planned().resolution, **same),))


def test_a_resolution_answers_only_the_request_that_it_was_made_for() -> None:
    request = asked()
    lock = locked(request)
    assert lock.find(request) is lock.resolutions[0]
    for path, other in variants(request):
        found = lock.find(other)
        assert (found is None) == (FOR_PEOPLE.fullmatch(path) is None), path


@pytest.mark.parametrize("number", [0, 1])
def test_dropping_a_package_and_pinning_it_are_different_requests(number: int) -> None:
    request = asked()
    changed = list(request.overrides)
    changed[number] = replace(changed[number], drop=not changed[number].drop)
    assert locked(request).find(replace(request, overrides=tuple(changed))) is None


def test_the_order_of_requirements_in_the_matrix_does_not_matter() -> None:
    cell = planned().cell
    backwards = replace(cell, requirements=cell.requirements[::-1])
    assert project_lock().find(request_of(backwards)) is planned().resolution


def test_a_cell_without_a_resolution_is_uncovered() -> None:
    made = planned()
    other = replace(made.cell, axes={**made.cell.axes, "python": "3.9"})
    lock = Lock(created="", tools=(), resolutions=(made.resolution,))
    assert lock.uncovered([made.cell, other]) == (other,)


def test_a_toolchain_answers_only_for_its_name_platform_and_requirements() -> None:
    wanted = Toolchain(
        name="cuda", requirements=("nvcc==1", "ptxas"), platforms=(Platform.ARM64,), location=HERE
    )
    one = LockedToolchain(
        name="cuda", platform=Platform.ARM64, requirements=("nvcc==1", "ptxas"), wheels=()
    )
    assert one.answers(wanted, Platform.ARM64)
    assert not one.answers(wanted, Platform.AMD64)
    assert not one.answers(replace(wanted, name="cuda13"), Platform.ARM64)
    for path, other in variants(wanted.requirements):
        assert not one.answers(replace(wanted, requirements=other), Platform.ARM64), path
    lock = Lock(created="", tools=(), resolutions=(), toolchains=(one,))
    assert lock.toolchain("cuda", Platform.ARM64) is one
    assert lock.toolchain("cuda", Platform.AMD64) is None
    assert lock.toolchain("other", Platform.ARM64) is None


#: What a base says of the machine that it makes, and not of what is locked for it.
OF_THE_CELL = re.compile(r"python|glibc|cuda_home|path.*|locations.*")


@pytest.mark.parametrize("suite", ["trixie", None])
def test_a_locked_base_answers_only_for_what_was_declared(suite: str | None) -> None:
    base: Base = replace(planned().cell.flavor.base, suite=suite)
    row = base_image(base, Platform.ARM64, deb("apt"), suite=suite).locked
    lock = Lock(created="", tools=(), resolutions=(), bases=(row,))
    assert lock.base(base, Platform.ARM64) is row
    assert lock.base(base, Platform.AMD64) is None
    for path, other in variants(base):
        found = lock.base(other, Platform.ARM64)
        assert (found is None) == (OF_THE_CELL.fullmatch(path) is None), path


def test_one_unpacker_for_all_platforms_is_the_only_version_there_is() -> None:
    lock = project_lock()
    assert lock.unpacker_version == lock.unpackers[0].wheel.version
    assert replace(lock, unpackers=lock.unpackers[:1]).unpacker_version is None
    first, *more = lock.unpackers
    newer = replace(first, wheel=replace(first.wheel, version="999"))
    assert replace(lock, unpackers=(newer, *more)).unpacker_version is None
    assert replace(lock, unpackers=()).unpacker_version is None
