"""Locks bases: the digest of an image in its registry, or the Debian packages of a suite."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from packaging.utils import canonicalize_name

from imagefactory.errors import FactoryError, InputError, Problem
from imagefactory.locking import registry_bases
from imagefactory.locking.changes import Change
from imagefactory.locking.debian import additions, archive, files, select, skeleton
from imagefactory.locking.debian.packages import Package, Universe
from imagefactory.locking.failures import Failures, combined
from imagefactory.locking.lock import Deb, Lock, LockedBase
from imagefactory.locking.locking import Renewed
from imagefactory.locking.registry_bases import Environment, is_pinned
from imagefactory.matrix.cell import Base, Cell
from imagefactory.settings import Settings
from imagefactory.system import ui
from imagefactory.system.platforms import Platform
from imagefactory.system.registry import Registries


def update(
    lock: Lock, cells: Collection[Cell], settings: Settings, *, upgrade: bool = False
) -> Lock:
    """``lock`` with the bases of ``cells`` for every platform, as any may be the build platform.

    Bases stay as they are locked until their declaration changes, or with ``upgrade``. Raises
    InputError or CheckFailedError for packages that a suite does not have, SetupError if an archive
    or a registry is not reachable.
    """
    failures = Failures()
    new = _update(lock, cells, settings, failures, upgrade=upgrade)
    error = combined(failures.rows)
    if error:
        raise error
    return new


def renew(
    renewed: Renewed,
    old: Lock | None,
    cells: Collection[Cell],
    settings: Settings,
    *,
    upgrade: bool = False,
    held: Collection[str] = (),
) -> Renewed:
    """``renewed`` with the bases of ``cells``, as ``update``; a base that fails is recorded.

    Those that are named in ``held`` are not upgraded.
    """
    failures = Failures()
    lock = _update(renewed.lock, cells, settings, failures, upgrade=upgrade, held=held)
    return Renewed(
        lock=lock,
        changes=(*renewed.changes, *changes(old, lock)),
        failures=(*renewed.failures, *failures.rows),
    )


def _update(
    lock: Lock,
    cells: Collection[Cell],
    settings: Settings,
    failures: Failures,
    *,
    upgrade: bool,
    held: Collection[str] = (),
) -> Lock:
    found: list[LockedBase] = []
    registries = Registries()
    for base, users in _users(cells):
        old = [one for platform in Platform if (one := lock.base(base, platform))]
        gone = registry_bases.vanished(base, registries) if old and is_pinned(base) else None
        # what its registry does not have would fail in a build, and stop the other cells' there
        new = [] if gone else old
        with failures.of(f"base {base.name}", users, kept=bool(new)):
            if gone:
                raise InputError([gone])
            moves = upgrade and canonicalize_name(base.name) not in held
            if moves or not old or not all(_is_complete(one, users) for one in old):
                kept = None if moves or not old else old[0].digest
                fresh = _locked(base, users, settings, registries, digest=kept)
                new = [_dated_as(old, one) for one in fresh]
        found += new
    if failures.rows:  # what fails may be a slip, and is declared as it was the next time
        known, declared = {(one.name, one.platform) for one in found}, _bases(cells)
        others = (one for one in lock.bases if (one.name, one.platform) not in known)
        found += [one for one in others if not any(one.answers(base) for base in declared)]
    rows = tuple(sorted(found, key=lambda one: (one.name, one.platform)))
    if rows == lock.bases:
        return lock
    return replace(lock, created=_today(), bases=rows)


def _users(cells: Iterable[Cell]) -> list[tuple[Base, list[Cell]]]:
    """Each base, with the cells on it."""
    found: dict[Base, list[Cell]] = {}
    for cell in cells:
        found.setdefault(cell.flavor.base, []).append(cell)
    return list(found.items())


def _bases(cells: Iterable[Cell]) -> list[Base]:
    return [base for base, _ in _users(cells)]


def _today() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d}"


def _dated_as(old: Sequence[LockedBase], new: LockedBase) -> LockedBase:
    """``new`` with the date of what is the same in ``old``: the packages are of that day, too."""
    same = (one for one in old if replace(new, created=one.created) == one)
    return next(same, new)


def _is_complete(locked: LockedBase, users: Iterable[Cell]) -> bool:
    """Whether it has all that ``users`` need; older locks have no environment of images."""
    has_env = locked.digest is None or locked.env is not None
    return has_env and (locked.compiler is not None or not _compiles(users))


def _compiles(users: Iterable[Cell]) -> bool:
    """Whether a wheel is compiled for any of ``users``."""
    return any(cell.compiles for cell in users)


def _locked(
    base: Base,
    users: Iterable[Cell],
    settings: Settings,
    registries: Registries,
    *,
    digest: str | None = None,
) -> list[LockedBase]:
    """The rows of a base; with ``digest``, of that image, whatever its tag is now."""
    if base.suite:
        return _from_packages(base, base.suite, settings, compiles=_compiles(users))
    wanted = {cell.platform for cell in users}
    found = registry_bases.look_up(base, wanted, registries, digest=digest)
    archives, rows = additions.Archives(settings), list[LockedBase]()
    for platform, image in found.images.items():
        where = f"{base.name} {platform}"
        try:
            has = skeleton.read(base.image, image, registries, settings)
            more = additions.find(
                base, platform.arch, has, archives, compiles=_compiles(users), where=where
            )
        except FactoryError as error:
            if platform in wanted:
                raise
            ui.warn(f"{where} is not locked, no cell needs it: {error.problems[0].what}")
            continue
        row = _row(base, platform, digest=found.digest, env=found.environments[platform])
        rows.append(replace(row, debs=more.debs, builder=more.builder, compiler=more.compiler))
    return rows


def _row(
    base: Base,
    platform: Platform,
    *,
    digest: str | None = None,
    env: Environment | None = None,
    debs: tuple[Deb, ...] = (),
    builder: tuple[Deb, ...] = (),
    compiler: tuple[Deb, ...] | None = None,
) -> LockedBase:
    return LockedBase(
        name=base.name,
        platform=platform,
        created=_today(),
        image=base.image,
        digest=digest,
        suite=base.suite,
        packages=base.packages,
        env=env,
        debs=debs,
        builder=builder,
        compiler=compiler,
    )


def _from_packages(
    base: Base, suite: str, settings: Settings, *, compiles: bool
) -> list[LockedBase]:
    with ui.step(f"selecting the Debian packages of {base.name}"):
        platforms = {platform.arch: platform for platform in Platform}
        indexes = archive.indexes(suite, list(platforms), settings.debian)
        found = []
        for arch, platform in platforms.items():
            universe = Universe(indexes[arch])
            where = f"{base.name} {platform}"
            selected = select.base(universe, base.packages, where=where)
            builder = select.more(universe, selected, select.BUILDER, where=where)
            compiler = None
            if compiles:
                every = [*selected, *builder]
                compiler = _debs(select.more(universe, every, select.COMPILER, where=where))
            found.append(
                _row(
                    base,
                    platform,
                    debs=_debs(selected),
                    builder=_debs(builder),
                    compiler=compiler,
                )
            )
    return found


def _debs(packages: Iterable[Package]) -> tuple[Deb, ...]:
    return tuple(package.deb for package in packages)


def changes(old: Lock | None, new: Lock) -> list[Change]:
    """How the bases of two locks differ: packages, and digests of images."""
    known = {(base.name, base.platform) for base in old.bases} if old else set()
    added = [base for base in new.bases if (base.name, base.platform) not in known]
    before = _versions(old.bases if old else ())
    after = _versions(base for base in new.bases if base not in added)
    rows = [(key, before.get(key, ""), after.get(key, "")) for key in sorted({*before, *after})]
    return [
        *(
            Change(resolution=_name(base), package="base", old="", new=_extent(base))
            for base in added
        ),
        *(
            Change(resolution=base, package=package, old=was, new=now)
            for (base, package), was, now in rows
            if was != now
        ),
    ]


def _name(base: LockedBase) -> str:
    return f"{base.name} {base.platform}"


def _extent(base: LockedBase) -> str:
    return base.digest or f"{len(base.debs)} packages"


def _versions(bases: Iterable[LockedBase]) -> dict[tuple[str, str], str]:
    found: dict[tuple[str, str], str] = {}
    for base in bases:
        name = _name(base)
        found |= {(name, deb.name): deb.version for deb in base.all_debs}
        if base.digest:
            found[name, base.image] = base.digest
    return found


def check(lock: Lock, cells: Sequence[Cell], settings: Settings) -> list[Problem]:
    """Problems of the locked bases: not locked as declared, not declared, or not available."""
    declared = _bases(cells)
    problems = [
        Problem(
            code="lock-uncovered",
            where=base.name,
            what=f"wheels.lock has no base {base.name} as the matrix declares it",
            fix="imagefactory lock",
        )
        for base in declared
        if not any(one.answers(base) for one in lock.bases)
    ]
    for one in lock.bases:
        if not any(one.answers(base) for base in declared):
            what = f"base {one.name} for {one.platform} is not declared like this any more"
            dead = Problem(
                code="lock-dead", where="wheels.lock", what=what, fix="imagefactory lock"
            )
            problems.append(dead)
    problems += _not_in_registry(lock.bases)
    debs = [(deb, one.created) for one in lock.bases for deb in one.all_debs]
    return [*problems, *files.missing(debs, settings)]


def _not_in_registry(bases: Iterable[LockedBase]) -> Iterator[Problem]:
    registries = Registries()
    for image in sorted({f"{b.image.partition('@')[0]}@{b.digest}" for b in bases if b.digest}):
        try:
            found = registries.manifest(image)
        except FactoryError as error:
            yield from error.problems
            continue
        if found is None:
            fix = "imagefactory lock --upgrade-base, or fix the digest in matrix.yaml"
            yield Problem(
                code="base-gone", where=image, what="its registry has no such image", fix=fix
            )
