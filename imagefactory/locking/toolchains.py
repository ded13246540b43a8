"""Toolchains and sources in the lock.

Resolved like anything else; toolchains get a prefix of their own.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

import requests

from imagefactory.errors import FactoryError, Problem, SetupError, fail
from imagefactory.locking import gitref, indexes, resolve, wheelhouse
from imagefactory.locking.lock import Lock, LockedSource, LockedToolchain
from imagefactory.locking.tags import BUILT, COMPILER_GLIBC, COMPILER_PYTHON
from imagefactory.matrix import origins
from imagefactory.matrix.cell import Cell, Request, Toolchain
from imagefactory.settings import Settings
from imagefactory.system import ui
from imagefactory.system.platforms import Platform


def compilers_of(
    lock: Lock | None, toolchain: Toolchain, settings: Settings, *, upgrade: bool
) -> Iterator[LockedToolchain]:
    """``toolchain`` for each of its platforms; what is unchanged comes from ``lock``, without any
    network.

    Raises CheckFailedError if there is no solution, SetupError if no index answers.
    """
    for platform in toolchain.platforms:
        old = lock.toolchain(toolchain.name, platform) if lock else None
        if old and not upgrade and old.answers(toolchain, platform):
            yield old
            continue
        with ui.step(f"resolving {toolchain.name} for {platform}"):
            yield _resolved(toolchain, platform, settings, refresh=upgrade)


def _resolved(
    toolchain: Toolchain, platform: Platform, settings: Settings, *, refresh: bool
) -> LockedToolchain:
    asked = Request(
        platform=platform,
        python=COMPILER_PYTHON,
        glibc=COMPILER_GLIBC,
        channel="",
        requirements=toolchain.requirements,
        overrides=(),
    )
    try:
        found = resolve.resolve(asked, settings, refresh=refresh)
    except FactoryError as error:
        placed = [
            replace(problem, where=problem.where or str(toolchain.location))
            for problem in error.problems
        ]
        raise type(error)(placed) from None
    wheels = tuple(sorted(found, key=lambda wheel: (wheel.name, wheel.filename)))
    return LockedToolchain(
        name=toolchain.name, platform=platform, requirements=toolchain.requirements, wheels=wheels
    )


def sources_of(
    lock: Lock | None, cells: Sequence[Cell], settings: Settings, *, upgrade: bool
) -> list[LockedSource]:
    """What the wheels of ``cells`` are made from: sdists, and commits of repositories.

    Raises SetupError if no index has the one, or the repository the other.
    """
    found: dict[tuple[str, str], LockedSource] = {}
    for cell in cells:
        build = cell.flavor.build
        if build is None:
            continue
        version = cell.vllm
        old = (
            {(s.name, s.version if s.name == BUILT else ""): s for s in lock.sources}
            if lock and not upgrade
            else {}
        )
        if build.ref is None and (BUILT, version) not in found:
            new = old.get((BUILT, version)) or _sdist(version, settings, where=str(build.location))
            found[BUILT, version] = new
        for text in [*([build.ref] if build.ref else []), *build.sources.values()]:
            if origins.of(text).kind is origins.Kind.GIT and (text, "") not in found:
                found[text, ""] = old.get((text, "")) or _commit(text, settings)
    return list(found.values())


def _commit(text: str, settings: Settings) -> LockedSource:
    origin = origins.of(text)
    with (
        ui.step(f"fetching {origin.place} at {origin.ref}"),
        tempfile.TemporaryDirectory(prefix="imagefactory-") as tmp,
    ):
        commit = gitref.commit_of(origin.place, origin.ref)
        part = Path(tmp) / f"{PurePosixPath(origin.place).stem}-{commit[:12]}.tar"
        gitref.pack(origin.place, commit, part)
        sha = wheelhouse.sha_of(part)
        wheelhouse.keep(wheelhouse.place(sha, part.name, settings), part)
        return LockedSource(
            name=text,
            version=commit,
            filename=part.name,
            sha256=sha,
            size=part.stat().st_size,
            url=f"git+{origin.place}@{commit}",
        )


def _sdist(version: str, settings: Settings, *, where: str) -> LockedSource:
    for index in settings.indexes:
        for file in indexes.pages(index, [BUILT])[BUILT].files:
            if (
                file.package_type == "sdist"
                and file.version == version
                and "sha256" in file.digests
            ):
                size = file.size or int(
                    requests.head(file.url, timeout=60).headers.get("content-length", 0)
                )
                return LockedSource(
                    name=BUILT,
                    version=version,
                    filename=file.filename,
                    sha256=file.digests["sha256"],
                    size=size,
                    url=file.url.partition("#")[0],
                )
    what = f"no index has the sources of {BUILT} {version}"
    raise fail(
        SetupError,
        "sources-unreachable",
        what,
        where=where,
        fix="imagefactory doctor checks the indexes",
    )


def uncovered(lock: Lock, toolchains: Sequence[Toolchain]) -> Iterator[Problem]:
    """A problem for each toolchain that the lock does not have as declared.

    And each that nothing declares.
    """
    wanted = {(t.name, platform): t for t in toolchains for platform in t.platforms}
    for (name, platform), toolchain in wanted.items():
        locked = lock.toolchain(name, platform)
        if locked is None or not locked.answers(toolchain, platform):
            what = f"wheels.lock has no {name} for {platform}"
            yield Problem(
                code="lock-uncovered",
                where=str(toolchain.location),
                what=what,
                fix="imagefactory lock",
            )
    for locked in lock.toolchains:
        if (locked.name, locked.platform) not in wanted:
            what = f"nothing declares {locked.name} for {locked.platform} any more"
            yield Problem(code="lock-dead", where="wheels.lock", what=what, fix="imagefactory lock")
