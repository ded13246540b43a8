"""Selects the packages of a base: what the matrix names, and what those depend on. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from imagefactory.errors import CheckFailedError, InputError, Problem
from imagefactory.locking.debian.packages import Package, Relation, Universe

#: In every base, besides the essential packages.
ALWAYS = ("apt", "ca-certificates")
#: Moves /bin and /lib of an installed system into /usr, where those of a base are from the start.
#: What depends on it accepts the empty package usr-is-merged, too.
CONVERTER = "usrmerge"
#: For the stage that assembles images.
BUILDER = ("git", "python3", "python3-venv")
#: For the stage that compiles wheels.
COMPILER = ("ccache", "g++", "libpython3-dev")


def base(universe: Universe, packages: Sequence[str], *, where: str) -> list[Package]:
    """The packages of a base image, sorted by name.

    Raises InputError for names that the suite does not have, CheckFailedError for packages whose
    dependencies cannot be satisfied, or that exclude each other. ``where`` is the base's name.
    """
    return _closed(universe, universe.basic(), (*ALWAYS, *packages), where=where)


def more(
    universe: Universe, selected: Sequence[Package], names: Sequence[str], *, where: str
) -> list[Package]:
    """The packages that ``names`` need besides ``selected``, sorted by name.

    Raises the errors of ``base``.
    """
    known = {package.name for package in selected}
    every = _closed(universe, selected, names, where=where)
    return [package for package in every if package.name not in known]


def _closed(
    universe: Universe, first: Iterable[Package], names: Sequence[str], *, where: str
) -> list[Package]:
    selected = {package.name: package for package in first}
    unknown = []
    for name in names:
        found = universe.candidates(Relation(name=name))
        if not found:
            unknown.append(_unknown(name, where))
        elif not any(one.name in selected for one in found):
            selected[found[0].name] = found[0]
    if unknown:
        raise InputError(unknown)
    queue = deque(selected.values())
    problems = []
    while queue:
        package = queue.popleft()
        for group in package.depends:
            if any(one.satisfies(relation) for relation in group for one in selected.values()):
                continue
            candidates = (one for relation in group for one in universe.candidates(relation))
            new = next((one for one in candidates if one.name != CONVERTER), None)
            if new is None:
                problems.append(_unsatisfied(package, group, where))
            else:
                selected[new.name] = new
                queue.append(new)
    problems += _exclusions(list(selected.values()), where)
    if problems:
        raise CheckFailedError(problems)
    return [selected[name] for name in sorted(selected)]


def _exclusions(selected: Sequence[Package], where: str) -> Iterator[Problem]:
    for package in selected:
        for relation in package.excludes:
            for other in selected:
                if other is not package and other.satisfies(relation):
                    what = f"{_shown(package)} cannot be installed with {_shown(other)}"
                    fix = "remove one of them from the base's `packages`, or what needs it"
                    yield Problem(code="debian-conflict", where=where, what=what, fix=fix)


def _unknown(name: str, where: str) -> Problem:
    what = f"the suite has no package {name}"
    return Problem(
        code="debian-no-package", where=where, what=what, fix="fix the name in `packages`"
    )


def _unsatisfied(package: Package, group: Iterable[Relation], where: str) -> Problem:
    wanted = " | ".join(map(str, group))
    what = f"{_shown(package)} needs {wanted}, which the suite does not have"
    fix = "remove what needs it from the base's `packages`"
    return Problem(code="debian-unsatisfied", where=where, what=what, fix=fix)


def _shown(package: Package) -> str:
    return f"{package.name} {package.deb.version}"
