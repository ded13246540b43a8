"""Locks toolchains, and the sources that wheels are built from."""

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
from imagefactory.system import ui, web
from imagefactory.system.platforms import Platform


def lock_toolchain(
    lock: Lock | None, toolchain: Toolchain, settings: Settings, *, upgrade: bool
) -> Iterator[LockedToolchain]:
    """Lock ``toolchain`` for each of its platforms; ``lock`` is reused where nothing changed.

    Raises CheckFailedError if there is no solution, SetupError if no index is reachable.
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
    request = Request(
        platform=platform,
        python=COMPILER_PYTHON,
        glibc=COMPILER_GLIBC,
        channel="",
        requirements=toolchain.requirements,
        overrides=(),
    )
    try:
        found = resolve.resolve(request, settings, refresh=refresh)
    except FactoryError as error:
        location = str(toolchain.location)
        problems = [replace(one, where=one.where or location) for one in error.problems]
        raise type(error)(problems) from None
    wheels = tuple(sorted(found, key=lambda wheel: (wheel.name, wheel.filename)))
    return LockedToolchain(
        name=toolchain.name, platform=platform, requirements=toolchain.requirements, wheels=wheels
    )


def lock_sources(
    lock: Lock | None, cells: Sequence[Cell], settings: Settings, *, upgrade: bool
) -> list[LockedSource]:
    """Lock the sources of wheels that ``cells`` build: sdists, and commits of git repositories.

    Raises SetupError if no index has the sdist, or the repository does not have the ref.
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
        ui.step(f"fetching {origin.address} at {origin.ref}"),
        tempfile.TemporaryDirectory(prefix="imagefactory-") as tmp,
    ):
        commit = gitref.commit_of(origin.address, origin.ref)
        part = Path(tmp) / f"{PurePosixPath(origin.address).stem}-{commit[:12]}.tar"
        gitref.pack(origin.address, commit, part)
        sha = wheelhouse.sha_of(part)
        wheelhouse.store(wheelhouse.path_of(sha, part.name, settings), part)
        return LockedSource(
            name=text,
            version=commit,
            filename=part.name,
            sha256=sha,
            size=part.stat().st_size,
            url=f"git+{origin.address}@{commit}",
        )


def _sdist(version: str, settings: Settings, *, where: str) -> LockedSource:
    for index in settings.indexes:
        for file in indexes.pages(index, [BUILT])[BUILT].files:
            is_sdist = file.package_type == "sdist" and "sha256" in file.digests
            if is_sdist and file.version == version:
                size = file.size
                if not size:
                    headers = requests.head(file.url, timeout=web.TIMEOUT).headers
                    size = int(headers.get("content-length", 0))
                return LockedSource(
                    name=BUILT,
                    version=version,
                    filename=file.filename,
                    sha256=file.digests["sha256"],
                    size=size,
                    url=web.without_account(file.url.partition("#")[0]),
                )
    what = f"the sdist of {BUILT} {version} was not found on any index"
    fix = "check the indexes: imagefactory doctor"
    raise fail(SetupError, "sources-unreachable", what, where=where, fix=fix)


def uncovered(lock: Lock, toolchains: Sequence[Toolchain]) -> Iterator[Problem]:
    """A problem for each toolchain that is not locked as declared, or locked but not declared."""
    wanted = {(t.name, platform): t for t in toolchains for platform in t.platforms}
    for (name, platform), toolchain in wanted.items():
        locked = lock.toolchain(name, platform)
        if locked is None or not locked.answers(toolchain, platform):
            what = f"wheels.lock has no toolchain {name} for {platform}"
            where = str(toolchain.location)
            yield Problem(code="lock-uncovered", where=where, what=what, fix="imagefactory lock")
    for locked in lock.toolchains:
        if (locked.name, locked.platform) not in wanted:
            what = f"toolchain {locked.name} for {locked.platform} is no longer declared"
            yield Problem(code="lock-dead", where="wheels.lock", what=what, fix="imagefactory lock")
