"""Selects the packages of a base: what the matrix names, and what those depend on. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

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


def added(
    universe: Universe, present: Sequence[Package], names: Sequence[str], *, where: str
) -> list[Package]:
    """The packages that ``names`` need besides those ``present`` in an image, sorted by name.

    Newer versions of present packages are among them if something needs these. Raises the errors
    of ``base``.
    """
    adding = _Adding(universe, present, where)
    for name in names:
        adding.ask(name)
    adding.close()
    new = sorted(adding.new.values(), key=lambda package: package.name)
    selected = list(adding.selected.values())
    problems = [*adding.problems, *_exclusions(selected, where, of=adding.new)]
    if any(problem.code == "debian-no-package" for problem in problems):
        raise InputError(problems)
    if problems:
        raise CheckFailedError(problems)
    return new


class _Adding:
    """Packages that are added to those of an image."""

    def __init__(self, universe: Universe, present: Sequence[Package], where: str) -> None:
        self._universe, self._where = universe, where
        self._queue: deque[Package] = deque()
        self.selected = {package.name: package for package in present}
        self.new: dict[str, Package] = {}
        self.problems: list[Problem] = []

    def ask(self, name: str) -> None:
        """Select the package ``name``, unless something present is or provides it."""
        relation = Relation(name=name)
        if not self._has(relation):
            found = self._universe.candidates(relation)
            if found:
                self._take(found[0])
            else:
                self.problems.append(_unknown(name, self._where))

    def close(self) -> None:
        """Select what the new packages depend on."""
        while self._queue:
            package = self._queue.popleft()
            for group in package.depends:
                if not any(self._has(relation) for relation in group):
                    self._satisfy(package, group)

    def _has(self, relation: Relation) -> bool:
        own = self.selected.get(relation.name)
        if own and own.satisfies(relation):
            return True
        return any(one.satisfies(relation) for one in self.selected.values())

    def _take(self, package: Package) -> None:
        old = self.selected.get(package.name)
        self.selected[package.name] = self.new[package.name] = package
        self._queue.append(package)
        if old:  # what needs exactly the old version is upgraded with it
            for other in list(self.selected.values()):
                if any(_broken(group, old, self._has) for group in other.depends):
                    self._upgrade(other)

    def _upgrade(self, package: Package) -> None:
        newer = self._universe.get(package.name)
        if newer is None or newer.deb.version == package.deb.version:
            group = next(g for g in package.depends if not any(map(self._has, g)))
            self.problems.append(_unsatisfied(package, group, self._where))
        elif package.name not in self.new:
            self._take(newer)

    def _satisfy(self, package: Package, group: Sequence[Relation]) -> None:
        found = (one for relation in group for one in self._universe.candidates(relation))
        new = next((one for one in found if one.name != CONVERTER), None)
        if new is None:
            self.problems.append(_unsatisfied(package, group, self._where))
        else:
            self._take(new)


def _broken(group: Sequence[Relation], old: Package, has: Callable[[Relation], bool]) -> bool:
    """Whether only ``old``, which is not there any more, satisfied ``group``."""
    return any(map(old.satisfies, group)) and not any(map(has, group))


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


def _exclusions(
    selected: Sequence[Package], where: str, *, of: Collection[str] | None = None
) -> Iterator[Problem]:
    """The packages that exclude each other; with ``of``, only pairs with one of these names."""
    for package in selected:
        for relation in package.excludes:
            for other in selected:
                if of is not None and not {package.name, other.name} & {*of}:
                    continue
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
