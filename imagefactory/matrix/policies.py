"""Which releases are taken over: ``follow`` and ``hold`` in the matrix. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from enum import StrEnum

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from imagefactory.errors import Problem
from imagefactory.matrix.schema import MatrixFile
from imagefactory.system.yamlfile import Loc, Location, Positions

#: The key of ``follow`` that counts for everything that it does not name.
DEFAULT = "default"
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")


class Follow(StrEnum):
    """Which newer versions count, from the fewest to all."""

    PATCH = "patch"
    MINOR = "minor"
    RELEASE = "release"
    RC = "rc"
    NIGHTLY = "nightly"
    MAIN = "main"

    @property
    def prereleases(self) -> bool:
        """Whether versions before a release count."""
        return self in (Follow.RC, Follow.NIGHTLY, Follow.MAIN)

    def allows(self, current: Version, new: Version) -> bool:
        """Whether a move from ``current`` to ``new`` is within the policy."""
        if new.epoch != current.epoch and self in (Follow.PATCH, Follow.MINOR):
            return False
        if new.is_devrelease:
            return self in (Follow.NIGHTLY, Follow.MAIN)
        if new.is_prerelease and not self.prereleases:
            return False
        if self is Follow.PATCH:
            return line_of(new) == line_of(current)
        return self is not Follow.MINOR or new.major == current.major


def line_of(version: Version) -> tuple[int, int, int]:
    """The line of releases that ``version`` belongs to: ``0.22`` for ``0.22.1``."""
    return version.epoch, version.major, version.minor


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """A limit for a package, for a reason and a time.

    Attributes:
        name: an axis, or the normalized name of a project.
        to: the versions that are accepted meanwhile.
        reason: why, as written in the matrix.
        until: the last day on which it counts.
        location: where it is written.
    """

    name: str
    to: str
    reason: str
    until: date
    location: Location

    def is_in_force(self, today: date) -> bool:
        """Whether it counts on that day."""
        return today <= self.until

    def accepts(self, version: Version) -> bool:
        """Whether ``version`` is within the limit."""
        return SpecifierSet(self.to).contains(version, prereleases=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """What the matrix says of newer versions.

    Attributes:
        default: what is followed where nothing else is written.
        follow: axis or normalized project name -> what is followed.
        holds: those of the file, by the same names.
        locations: where each name of ``follow`` is written.
    """

    default: Follow = Follow.RELEASE
    follow: Mapping[str, Follow] = field(default_factory=dict)
    holds: Mapping[str, Hold] = field(default_factory=dict)
    locations: Mapping[str, Location] = field(default_factory=dict)

    def explicit(self, names: Iterable[str]) -> Follow | None:
        """What is written for the first of ``names`` that is named, or None."""
        return next((self.follow[name] for name in names if name in self.follow), None)

    def followed(self, names: Iterable[str]) -> Follow:
        """What is followed for something with these names, the most specific one first."""
        return self.explicit(names) or self.default

    def held(self, names: Iterable[str], today: date) -> Hold | None:
        """The hold in force for something with these names, the most specific one first."""
        found = (self.holds[name] for name in names if name in self.holds)
        return next((hold for hold in found if hold.is_in_force(today)), None)

    def expired(self, today: date) -> tuple[Problem, ...]:
        """A problem for each hold that does not count any more."""
        return tuple(
            Problem(
                code="hold-expired",
                where=str(hold.location),
                what=f"the hold of {hold.name} to {hold.to} ended on {hold.until} ({hold.reason})",
                fix="remove it, or look at its reason again and write a later `until`",
            )
            for hold in self.holds.values()
            if not hold.is_in_force(today)
        )

    def idle(self, known: Iterable[str]) -> tuple[Problem, ...]:
        """A problem for each name that is none of ``known``: nothing would be followed or held."""
        names = set(known)
        rows = [("hold", name, hold.location) for name, hold in self.holds.items()]
        rows += [("follow", name, self.locations[name]) for name in self.follow]
        return tuple(
            Problem(
                code="policy-unknown-name",
                where=str(location),
                what=f"`{key}` names {name}, which is neither an axis nor a package of the lock",
                fix="write the name of an axis or a package, or remove it",
            )
            for key, name, location in rows
            if name not in names
        )


def of_file(file: MatrixFile, positions: Positions) -> Policies:
    """The policies of a valid file."""
    written = _follow(file)
    default = Follow(written.get(DEFAULT, Follow.RELEASE))
    return Policies(
        default=default,
        follow={
            canonical(name): Follow(value) for name, value in written.items() if name != DEFAULT
        },
        holds={
            canonical(name): Hold(
                name=canonical(name),
                to=entry.to,
                reason=entry.reason,
                until=entry.until,
                location=positions.locate(("hold", name), "hold"),
            )
            for name, entry in file.hold.items()
        },
        locations={
            canonical(name): positions.locate(("follow", name), "follow") for name in written
        },
    )


def canonical(name: str) -> str:
    """The name of an axis or project as policies have it; an axis may have underscores."""
    return canonicalize_name(name)


def problems(file: MatrixFile, positions: Positions) -> Iterator[Problem]:
    """Report names that no package can have, and limits that are none."""
    written: list[Loc] = [("follow", name) for name in _follow(file)]
    written += [("hold", name) for name in file.hold]
    seen: dict[tuple[str | int, str], str] = {}
    for loc in written:
        section, name = loc[0], str(loc[1])
        if not _NAME.fullmatch(name) or (section == "hold" and name == DEFAULT):
            what = f"{name!r} is neither an axis nor the name of a package"
            yield _problem("bad-name", loc, what, "write one of these", positions)
            continue
        other = seen.setdefault((section, canonical(name)), name)
        if other != name:
            what, fix = f"{name!r} and {other!r} are one name", "keep one of them"
            yield _problem("bad-name", loc, what, fix, positions)
    for name, entry in file.hold.items():
        try:
            limit = SpecifierSet(entry.to)
        except InvalidSpecifier:
            limit = SpecifierSet()
        if not limit:
            what = f"{entry.to!r} is not a limit of versions"
            fix = 'write PEP 440 specifiers, such as "<0.24" or "==2.11.*"'
            yield _problem("bad-hold", ("hold", name, "to"), what, fix, positions)


def _follow(file: MatrixFile) -> Mapping[str, str]:
    return {DEFAULT: file.follow} if isinstance(file.follow, str) else file.follow


def _problem(code: str, loc: Loc, what: str, fix: str, positions: Positions) -> Problem:
    return Problem(code=f"matrix-{code}", where=str(positions.locate(loc)), what=what, fix=fix)
