"""Looks up what is newer than bases and git refs: registries, Debian's archive, repositories."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from imagefactory.errors import FactoryError
from imagefactory.locking import gitref
from imagefactory.locking.debian import archive, packages
from imagefactory.locking.lock import Lock, LockedBase
from imagefactory.locking.locked_sources import LockedRef, LockedSource
from imagefactory.matrix import origins
from imagefactory.matrix.cell import Base, Cell
from imagefactory.matrix.policies import canonical
from imagefactory.settings import Settings
from imagefactory.system.platforms import Platform
from imagefactory.system.registry import Registries
from imagefactory.watching.assessing import View, held_by
from imagefactory.watching.rows import Row, State

#: A row whose newer version is still unknown, and how to complete it.
Lookup = tuple[Row, Callable[[], list[Row]]]


def look_up(cells: Sequence[Cell], lock: Lock, settings: Settings, view: View) -> list[Row]:
    """Rows of all bases and git refs of ``lock`` that the matrix still has, read in parallel."""
    lookups = [*_bases(cells, lock, settings, view), *_sources(cells, lock)]
    with ThreadPoolExecutor(max(len(lookups), 1)) as pool:
        return [row for found in pool.map(_done, lookups) for row in found]


def _done(lookup: Lookup) -> list[Row]:
    row, look = lookup
    try:
        return look()
    except FactoryError as error:
        problem = error.problems[0]
        return [replace(row, state=State.UNKNOWN, newest="", compatible="", reason=problem.what)]


def _bases(cells: Sequence[Cell], lock: Lock, settings: Settings, view: View) -> Iterator[Lookup]:
    registries = Registries()
    for base in dict.fromkeys(cell.flavor.base for cell in cells):
        found = [one for platform in Platform if (one := lock.base(base, platform))]
        if base.suite is None and found:
            yield _image(base, found[0], registries, view)
        for locked in found:
            if locked.suite:
                yield _debs(base, locked, locked.suite, settings, view)


def _image(base: Base, locked: LockedBase, registries: Registries, view: View) -> Lookup:
    name, _, pinned = base.image.partition("@")
    row = _row(f"base {base.name}", name, locked.digest or "", str(base.where("image") or ""))

    def look() -> list[Row]:
        found = registries.manifest(name)
        newest = found.digest if found else ""
        if found is None:
            return [replace(row, state=State.YANKED, reason=f"its registry does not have {name}")]
        if newest == row.current:
            return [row]
        held = f"the digest is pinned in {row.where}" if pinned else _held(base, view)
        return [_moved(row, newest, held)]

    return row, look


def _debs(base: Base, locked: LockedBase, suite: str, settings: Settings, view: View) -> Lookup:
    part = f"base {base.name} {locked.platform}"
    row = _row(part, f"Debian {suite}", f"{len(locked.all_debs)} packages", "")

    def look() -> list[Row]:
        arch, kept = locked.platform.arch, settings.cache / "debian"
        known = archive.versions(suite, arch, settings.debian, kept)
        debs = {deb.name: deb.version for deb in locked.all_debs}
        found = []
        for name, version in sorted(debs.items()):
            newest = packages.newest([version, *known.get(name, ())]) or version
            if newest != version:
                found.append(
                    _moved(replace(row, name=name, current=version), newest, _held(base, view))
                )
        return found or [replace(row, newest=row.current, compatible=row.current)]

    return row, look


def _sources(cells: Sequence[Cell], lock: Lock) -> Iterator[Lookup]:
    wanted = {text: str(where) for cell in cells for text, where in cell.origins.items()}
    for source in lock.sources:
        if source.name in wanted and origins.of(source.name).kind is origins.Kind.GIT:
            yield _commit(source, wanted[source.name])
    for ref in dict.fromkeys(cell.ref for cell in cells if cell.ref):
        if locked := lock.ref(ref):
            yield _ref(locked, str(ref.location))


def _ref(locked: LockedRef, where: str) -> Lookup:
    """Where the ref is now, and its pull requests; either moves the cells of it."""
    row = _row("refs", f"{locked.repository}@{locked.ref}", locked.commit, where)
    prs = {
        pull.number: _row("refs", f"pull request {pull.number}", pull.commit, where)
        for pull in locked.pulls
    }

    def look() -> list[Row]:
        newest = [(row, gitref.commit_of(locked.repository, locked.ref))]
        newest += [(pr, gitref.head_of(locked.repository, number)) for number, pr in prs.items()]
        return [one if new == one.current else _moved(one, new, "") for one, new in newest]

    return row, look


def _commit(source: LockedSource, where: str) -> Lookup:
    origin = origins.of(source.name)
    row = _row("sources", source.name, source.version, where)

    def look() -> list[Row]:
        newest = gitref.commit_of(origin.address, origin.ref)
        return [row if newest == row.current else _moved(row, newest, "")]

    return row, look


def _held(base: Base, view: View) -> str:
    hold = view.policies.held((canonical(base.name),), view.today)
    return held_by(hold) if hold else ""


def _row(part: str, name: str, current: str, where: str) -> Row:
    return Row(
        part=part,
        name=name,
        current=current,
        compatible=current,
        newest=current,
        state=State.CURRENT,
        where=where,
    )


def _moved(row: Row, newest: str, held: str) -> Row:
    state = State.HELD if held else State.OUTDATED
    compatible = row.current if held else newest
    return replace(row, compatible=compatible, newest=newest, state=state, reason=held)
