"""What indexes have of projects: releases with their wheels, dates and requirements. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Protocol

from packaging.requirements import Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.tags import Tag
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from imagefactory.errors import Problem, SetupError, fail


@lru_cache(maxsize=65536)
def _tags(filename: str) -> frozenset[Tag]:
    """The tags in a file name; none for a malformed one."""
    try:
        return parse_wheel_filename(filename)[3]
    except InvalidWheelFilename:
        return frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelFile:
    """A wheel on an index, as the project's page describes it (PEP 691 and 700).

    Attributes:
        filename: with its version and tags.
        version: as in the file name.
        python: its Requires-Python; empty for any.
        yanked: why it was withdrawn, ``yanked`` without a reason; None if it was not.
        uploaded: when; None if the index does not say.
        url: where it is; empty in a record.
        sha256: hex digest; empty if the index does not say.
        size: bytes; 0 if the index does not say.
    """

    filename: str
    version: Version
    python: str = ""
    yanked: str | None = None
    uploaded: datetime | None = None
    url: str = ""
    sha256: str = ""
    size: int = 0

    @property
    def tags(self) -> frozenset[Tag]:
        """What it can be installed on."""
        return _tags(self.filename)

    def runs_on(self, python: str) -> bool:
        """Whether its Requires-Python accepts ``X.Y``; one that nobody can read does."""
        try:
            return not self.python or SpecifierSet(self.python).contains(f"{python}.99")
        except InvalidSpecifier:
            return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One version of a project, with its wheels; without any, it has only sources."""

    version: Version
    wheels: tuple[WheelFile, ...] = ()

    @property
    def yanked(self) -> str | None:
        """Why it was withdrawn; None if a wheel was not."""
        reasons = [wheel.yanked for wheel in self.wheels]
        return next((r for r in reasons if r), None) if all(reasons) else None

    @property
    def uploaded(self) -> datetime | None:
        """When its first wheel was uploaded."""
        return min((one.uploaded for one in self.wheels if one.uploaded), default=None)


@dataclass(frozen=True)
class Listing:
    """All that the indexes have of a project; ``problem`` says why that is unknown."""

    releases: tuple[Release, ...] = ()
    problem: Problem | None = None

    @cached_property
    def newest_first(self) -> tuple[Release, ...]:
        """The releases in the order of PEP 440, the newest first."""
        return tuple(sorted(self.releases, key=lambda one: one.version, reverse=True))

    def of(self, version: Version) -> Release | None:
        """The release of that version, or None."""
        return next((one for one in self.releases if one.version == version), None)

    def at(self, now: datetime) -> Listing:
        """What was known at that time: wheels that were uploaded later are left out."""
        kept = tuple(
            replace(one, wheels=wheels)
            for one in self.releases
            if (wheels := tuple(w for w in one.wheels if _is_known(w, now))) or not one.wheels
        )
        return self if kept == self.releases else Listing(kept, self.problem)


def _is_known(wheel: WheelFile, now: datetime) -> bool:
    return wheel.uploaded is None or wheel.uploaded <= now


class Upstream(Protocol):
    """Where releases are looked up: the indexes, or a record of them."""

    def listing(self, project: str, index: str | None = None) -> Listing:
        """What the machine's indexes have of ``project``, or the one at the URL ``index``."""

    def requires(self, project: str, wheel: WheelFile) -> tuple[str, ...]:
        """The Requires-Dist lines of a wheel. Raises SetupError if they cannot be read."""


def listing(files: Sequence[WheelFile], versions: Sequence[str] = ()) -> Listing:
    """A listing of wheels; ``versions`` may have more releases, of which there are only sources."""
    found: dict[Version, list[WheelFile]] = {}
    for text in versions:
        version = _version(text)
        if version:
            found.setdefault(version, [])
    for file in files:
        found.setdefault(file.version, []).append(file)
    return Listing(tuple(Release(version=v, wheels=tuple(w)) for v, w in found.items()))


def wheel_file(filename: str, **more: Any) -> WheelFile | None:
    """The wheel of that name; None if it is not one. ``more`` are its other attributes.

    Its tags are parsed when they are needed: a page may have thousands of old wheels.
    """
    parts = filename.removesuffix(".whl").split("-")
    if not filename.endswith(".whl") or len(parts) not in (5, 6):
        return None
    version = _version(parts[1])
    return WheelFile(filename=filename, version=version, **more) if version else None


@lru_cache(maxsize=65536)
def _version(text: str) -> Version | None:
    """A version; None for one that is older than PEP 440."""
    try:
        return Version(text)
    except InvalidVersion:
        return None


@dataclass(frozen=True)
class Recorded:
    """A record of indexes: for tests, and to replay the past with another ``now``.

    Attributes:
        listings: by project, or by project and the URL of its index.
        lines: Requires-Dist lines by file name.
        now: the moment that it shows; None for all of it.
    """

    listings: Mapping[str | tuple[str, str], Listing]
    lines: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    now: datetime | None = None

    def listing(self, project: str, index: str | None = None) -> Listing:
        """As recorded; an empty one for what is not in the record."""
        found = self.listings.get((project, index) if index else project, Listing())
        return found.at(self.now) if self.now else found

    def requires(self, project: str, wheel: WheelFile) -> tuple[str, ...]:
        """As recorded. Raises SetupError for a wheel whose lines are not in the record."""
        if wheel.filename not in self.lines:
            what = f"the requirements of {project} in {wheel.filename} are not recorded"
            raise fail(SetupError, "not-recorded", what, fix="record them")
        return self.lines[wheel.filename]


def recorded(path: Path, now: datetime | None = None) -> Recorded:
    """Read a record: project -> version -> ``wheels``, ``uploaded``, ``yanked`` and so on."""
    data = json.loads(path.read_text(encoding="utf-8"))
    listings: dict[str | tuple[str, str], Listing] = {}
    lines: dict[str, tuple[str, ...]] = {}
    for project, versions in data.items():
        files = []
        for row in versions.values():
            uploaded = datetime.fromisoformat(row["uploaded"])
            for name in row["wheels"]:
                file = wheel_file(
                    name,
                    uploaded=uploaded,
                    python=row.get("python", ""),
                    yanked=row.get("yanked"),
                )
                files += [file] if file else []
                if "requires" in row:
                    lines[name] = tuple(row["requires"])
        listings[project] = listing(files, list(versions))
    return Recorded(listings, lines, now)


@lru_cache(maxsize=16384)
def requirement(line: str) -> Requirement | None:
    """A Requires-Dist line; None for one that is not PEP 508."""
    try:
        return Requirement(line)
    except ValueError:
        return None
