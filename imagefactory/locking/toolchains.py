"""Toolchains in the lock: resolved like anything else, installed into a prefix of their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from imagefactory import ui
from imagefactory.cell import Request, Toolchain
from imagefactory.errors import FactoryError, Problem
from imagefactory.locking import resolve
from imagefactory.locking.model import Lock, LockedToolchain
from imagefactory.settings import Settings

#: NVIDIA's compiler wheels are for any Python 3 and for a glibc older than any that the bases have.
PYTHON, GLIBC = "3.11", "2.28"


def compilers_of(
    lock: Lock | None, toolchain: Toolchain, settings: Settings, *, upgrade: bool
) -> Iterator[LockedToolchain]:
    """``toolchain`` for each of its platforms; what is unchanged comes from ``lock``, without any network.

    Raises CheckFailedError if there is no solution, SetupError if no index answers.
    """
    for platform in toolchain.platforms:
        old = lock.toolchain(toolchain.name, platform) if lock else None
        if old and not upgrade and old.answers(toolchain, platform):
            yield old
            continue
        with ui.step(f"resolving {toolchain.name} for {platform}"):
            yield _resolved(toolchain, platform, settings, refresh=upgrade)


def _resolved(toolchain: Toolchain, platform: str, settings: Settings, *, refresh: bool) -> LockedToolchain:
    asked = Request(
        platform=platform,
        python=PYTHON,
        glibc=GLIBC,
        channel="",
        requirements=toolchain.requirements,
        overrides=(),
    )
    try:
        found = resolve.resolve(asked, settings, refresh=refresh)
    except FactoryError as error:
        placed = [replace(problem, where=problem.where or str(toolchain.source)) for problem in error.problems]
        raise type(error)(placed) from None
    wheels = tuple(sorted(found, key=lambda wheel: (wheel.name, wheel.filename)))
    return LockedToolchain(name=toolchain.name, platform=platform, requirements=toolchain.requirements, wheels=wheels)


def uncovered(lock: Lock, toolchains: Sequence[Toolchain]) -> Iterator[Problem]:
    """A problem for each toolchain that the lock does not have as declared, and each that nothing declares."""
    wanted = {(t.name, platform): t for t in toolchains for platform in t.platforms}
    for (name, platform), toolchain in wanted.items():
        locked = lock.toolchain(name, platform)
        if locked is None or not locked.answers(toolchain, platform):
            what = f"wheels.lock has no {name} for {platform}"
            yield Problem(code="lock-uncovered", where=str(toolchain.source), what=what, fix="imagefactory lock")
    for locked in lock.toolchains:
        if (locked.name, locked.platform) not in wanted:
            what = f"nothing declares {locked.name} for {locked.platform} any more"
            yield Problem(code="lock-dead", where="wheels.lock", what=what, fix="imagefactory lock")
