"""Locks toolchains, and the sources that wheels are built from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from imagefactory.errors import FactoryError, Problem, SetupError, fail
from imagefactory.locking import closure, dependencies, gitref, indexes, resolve, tree_archives
from imagefactory.locking.lock import Lock, LockedToolchain
from imagefactory.locking.locked_sources import LockedSource
from imagefactory.locking.tags import BUILT, COMPILER_GLIBC, COMPILER_PYTHON
from imagefactory.matrix import origins
from imagefactory.matrix.cell import Cell, Request, Toolchain
from imagefactory.settings import Settings
from imagefactory.system import ui, web
from imagefactory.system.platforms import Platform


def lock_toolchain(
    toolchain: Toolchain,
    platform: Platform,
    settings: Settings,
    constraints: Sequence[str] = (),
    *,
    refresh: bool,
) -> LockedToolchain:
    """Resolve ``toolchain`` for ``platform`` within ``constraints``.

    ``refresh`` ignores index pages in uv's cache.

    Raises CheckFailedError if there is no solution, SetupError if no index is reachable.
    """
    request = Request(
        platform=platform,
        python=COMPILER_PYTHON,
        glibc=COMPILER_GLIBC,
        channel="",
        requirements=toolchain.requirements,
        overrides=(),
    )
    try:
        with ui.step(f"resolving {toolchain.name} for {platform}"):
            wheels = dependencies.recorded(
                resolve.resolve(request, settings, refresh=refresh, constraints=constraints),
                request.requirements,
                (),
                closure.environment(platform, COMPILER_PYTHON),
                settings,
            )
    except FactoryError as error:
        location = str(toolchain.location)
        problems = [replace(one, where=one.where or location) for one in error.problems]
        raise type(error)(problems) from None
    return LockedToolchain(
        name=toolchain.name, platform=platform, requirements=toolchain.requirements, wheels=wheels
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedSource:
    """Sources that a wheel is built from: an sdist, or a commit of a git repository.

    Attributes:
        name: the project, or the text of the git ref.
        version: of the sdist; empty for a git ref.
        where: where the matrix asks for it.
    """

    name: str
    version: str
    where: str = field(compare=False)

    def find_in(self, lock: Lock | None) -> LockedSource | None:
        """The source in ``lock``, or None."""
        if lock is None:
            return None
        return lock.source(self.name, self.version) if self.version else lock.commit(self.name)


def wanted_sources(cells: Sequence[Cell]) -> dict[WantedSource, Cell]:
    """The sources of wheels that ``cells`` build, each with the first cell that needs it."""
    found: dict[WantedSource, Cell] = {}
    for cell in cells:
        if cell.build and cell.ref is None:
            where = str(cell.build.location)
            found.setdefault(WantedSource(name=BUILT, version=cell.vllm, where=where), cell)
        for text, location in cell.origins.items():
            if origins.of(text).kind is origins.Kind.GIT:
                found.setdefault(WantedSource(name=text, version="", where=str(location)), cell)
    return found


def lock_source(wanted: WantedSource, settings: Settings) -> LockedSource:
    """Lock a source.

    Raises SetupError if no index has the sdist, or the repository does not have the ref.
    """
    if wanted.version:
        return _sdist(wanted.version, settings, where=wanted.where)
    return _commit(wanted.name, settings)


def _commit(text: str, settings: Settings) -> LockedSource:
    origin = origins.of(text)
    with ui.step(f"fetching {origin.address} at {origin.ref}"):
        commit = gitref.commit_of(origin.address, origin.ref)
        return tree_archives.lock(
            text,
            commit,
            filename=f"{PurePosixPath(origin.address).stem}-{commit[:12]}.tar",
            address=f"{origin.address}@{commit}",
            pack=lambda archive: gitref.pack(origin.address, commit, archive),
            settings=settings,
        )


def _sdist(version: str, settings: Settings, *, where: str) -> LockedSource:
    for index in settings.indexes:
        for file in indexes.pages(index, [BUILT], settings)[BUILT].files:
            is_sdist = file.package_type == "sdist" and "sha256" in file.digests
            if is_sdist and file.version == version:
                url = file.url.partition("#")[0]
                return LockedSource(
                    name=BUILT,
                    version=version,
                    filename=file.filename,
                    sha256=file.digests["sha256"],
                    size=file.size or web.size_of(url, settings.account_for(url)),
                    url=web.without_account(url),
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
