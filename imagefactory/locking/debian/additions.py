"""Selects the Debian or Ubuntu packages that are added to an image of a registry."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from imagefactory.errors import FactoryError, InputError, fail
from imagefactory.locking.debian import archive, packages, select
from imagefactory.locking.debian.packages import Package, Universe
from imagefactory.locking.debian.skeleton import Skeleton
from imagefactory.locking.lock import Deb
from imagefactory.matrix.cell import Base
from imagefactory.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Additions:
    """Packages that an image lacks: for all images on it, for the builder, and for compiling."""

    debs: tuple[Deb, ...]
    builder: tuple[Deb, ...]
    compiler: tuple[Deb, ...] | None


@dataclass(slots=True)
class Archives:
    """The packages of suites, read when they are first needed."""

    settings: Settings
    _known: dict[tuple[str, str, str], Universe] = field(default_factory=dict)

    def universe(self, skeleton: Skeleton, arch: str, where: str) -> Universe:
        """The packages for an image. Raises InputError for a distribution without known keys."""
        fields = skeleton.distribution
        name, suite = fields.get("ID", ""), fields.get("VERSION_CODENAME", "")
        if name not in archive.DISTRIBUTIONS or not suite:
            shown = fields.get("PRETTY_NAME") or name or "without os-release"
            what = f"the image is {shown}; packages are only added to Debian and Ubuntu"
            raise _refused(what, where)
        key = name, suite, arch
        if key not in self._known:
            found = archive.indexes(suite, [arch], self.settings.debian, distribution=name)
            self._known[key] = Universe(found[arch])
        return self._known[key]


def find(
    base: Base, arch: str, skeleton: Skeleton, archives: Archives, *, compiles: bool, where: str
) -> Additions:
    """The packages that an image with ``skeleton`` lacks.

    Raises InputError for an image without dpkg, of an unknown distribution, or for names that it
    does not have; CheckFailedError for packages whose dependencies cannot be satisfied.
    """
    if skeleton.status is None:
        raise _refused("the image has no dpkg, so no packages can be added to it", where)
    present = packages.installed(skeleton.status)
    lists: list[list[Package]] = []
    for names in (base.packages, select.BUILDER, select.COMPILER if compiles else ()):
        new = _lacking(names, present, skeleton, arch, archives, where)
        lists.append(new)
        replaced = {package.name for package in new}
        present = [*(one for one in present if one.name not in replaced), *new]
    debs, builder, compiler = (tuple(package.deb for package in new) for new in lists)
    return Additions(debs=debs, builder=builder, compiler=compiler if compiles else None)


def _lacking(
    names: Iterable[str],
    present: Sequence[Package],
    skeleton: Skeleton,
    arch: str,
    archives: Archives,
    where: str,
) -> list[Package]:
    provided = {one.name for package in present for one in package.provides}
    known = {package.name for package in present} | provided
    wanted = [name for name in names if name not in known]
    if not wanted:
        return []
    universe = archives.universe(skeleton, arch, where)
    return select.added(universe, present, wanted, where=where)


def _refused(what: str, where: str) -> FactoryError:
    fix = (
        "use an image with dpkg, or one that has git, python3, python3-venv and what the base's "
        "`packages` name, or write `suite:` to make the base from Debian packages"
    )
    return fail(InputError, "base-no-packages", what, where=where, fix=fix)
