"""The packages of a suite, with their relations; only those that are asked for are parsed."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from imagefactory.locking.debian.archive import Index
from imagefactory.locking.lock import Deb

if TYPE_CHECKING:
    from debian.debian_support import Version

_PROVIDES = re.compile(rb"^Provides: (.+)$", re.MULTILINE)
_BASIC = (b"\nEssential: yes", b"\nPriority: required")
_PRIORITIES = ("required", "important", "standard", "optional", "extra")


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """One alternative of a relation, such as ``libc6 (>= 2.34)``; ``operator`` may be empty."""

    name: str
    operator: str = ""
    version: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.operator} {self.version})" if self.operator else self.name

    def allows(self, version: str) -> bool:
        """Whether a package of this version satisfies the relation."""
        if not self.operator:
            return True
        order = _compare(version, self.version)
        return {
            "<<": order < 0,
            "<=": order <= 0,
            "=": order == 0,
            ">=": order >= 0,
            ">>": order > 0,
        }[self.operator]


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A package of the archive.

    Attributes:
        deb: its file.
        priority: ``required``, ``important``, ``standard``, ``optional`` or ``extra``.
        depends: what it needs, as groups of alternatives (Pre-Depends and Depends).
        excludes: what it cannot be installed with (Conflicts and Breaks).
        provides: virtual packages that it provides; with ``=`` and a version, or without one.
    """

    deb: Deb
    priority: str
    depends: tuple[tuple[Relation, ...], ...]
    excludes: tuple[Relation, ...]
    provides: tuple[Relation, ...]

    @property
    def name(self) -> str:
        """Its name."""
        return self.deb.name

    def satisfies(self, relation: Relation) -> bool:
        """Whether it has the name and version, or provides them."""
        if self.name == relation.name and relation.allows(self.deb.version):
            return True
        return any(
            one.name == relation.name
            and (not relation.operator or (bool(one.version) and relation.allows(one.version)))
            for one in self.provides
        )


@lru_cache(maxsize=65536)
def _version(text: str) -> Version:
    from debian.debian_support import Version  # noqa: PLC0415 - only needed to lock

    return Version(text)


def _compare(one: str, other: str) -> int:
    left, right = _version(one), _version(other)
    return (left > right) - (left < right)


def newest(versions: Iterable[str]) -> str | None:
    """The highest of some Debian versions; None if there are none."""
    return max(versions, key=_version, default=None)


class Universe:
    """All packages of some indexes of one architecture; the highest version of each counts."""

    def __init__(self, indexes: Iterable[Index]) -> None:
        self._rows: dict[str, list[tuple[str, bytes]]] = defaultdict(list)
        self._providers: dict[str, set[str]] = defaultdict(set)
        self._basic: set[str] = set()
        self._parsed: dict[str, Package | None] = {}
        for index in indexes:
            for paragraph in index.text.split(b"\n\n"):
                self._add(index.archive, paragraph.strip(b"\n"))

    def _add(self, archive: str, paragraph: bytes) -> None:
        if not paragraph.startswith(b"Package: "):
            return
        name = paragraph.partition(b"\n")[0].removeprefix(b"Package: ").decode()
        self._rows[name].append((archive, paragraph))
        provided = _PROVIDES.search(paragraph)
        for part in provided[1].split(b",") if provided else ():
            self._providers[re.split(rb"[ (:]", part.strip())[0].decode()].add(name)
        if any(mark in paragraph for mark in _BASIC):
            self._basic.add(name)

    def get(self, name: str) -> Package | None:
        """The highest version of the package ``name``; None if there is none of that name."""
        if name not in self._parsed:
            found = [_parse(archive, paragraph) for archive, paragraph in self._rows.get(name, ())]
            best = max(found, key=lambda one: _version(one.deb.version), default=None)
            self._parsed[name] = best
        return self._parsed[name]

    def basic(self) -> list[Package]:
        """The packages of every Debian system: essential ones, and those of priority required."""
        found = [self.get(name) for name in sorted(self._basic)]
        return [package for package in found if package]

    def candidates(self, relation: Relation) -> list[Package]:
        """What satisfies ``relation``, best first: the package itself, then by priority."""
        own = self.get(relation.name)
        names = sorted(self._providers.get(relation.name, set()) - {relation.name})
        others = [package for name in names if (package := self.get(name))]
        others.sort(key=lambda package: _PRIORITIES.index(package.priority))
        return [one for one in (*([own] if own else ()), *others) if one.satisfies(relation)]


def installed(status: str) -> list[Package]:
    """The packages that dpkg's ``status`` lists as installed; their files are unknown."""
    paragraphs = (one.strip("\n").encode(errors="surrogateescape") for one in status.split("\n\n"))
    return [
        _parse("", one) for one in paragraphs if re.search(rb"(?m)^Status: \S+ ok installed$", one)
    ]


def lacking(packages: Collection[Package], names: Iterable[str]) -> list[str]:
    """What ``packages`` lack, a sentence each: of the matrix's ``names``, and what they depend on.

    Recommended packages do not count, and what several depend on is said once.
    """
    providers: dict[str, list[Package]] = defaultdict(list)
    for package in packages:
        for name in {package.name, *(one.name for one in package.provides)}:
            providers[name].append(package)
    wanted: list[tuple[str, tuple[Relation, ...]]] = [
        ("the matrix names", (Relation(name=name),)) for name in names
    ]
    wanted += [
        (f"{package.name} {package.deb.version} depends on", group)
        for package in packages
        for group in package.depends
    ]
    found: dict[tuple[str, ...], str] = {}
    for who, group in wanted:
        if not any(package.satisfies(one) for one in group for package in providers[one.name]):
            key = tuple(one.name for one in group)
            found.setdefault(key, f"{who} {' | '.join(map(str, group))}")
    return list(found.values())


def _parse(archive: str, paragraph: bytes) -> Package:
    from debian.deb822 import Packages  # noqa: PLC0415 - only needed to lock

    row = Packages(paragraph)
    relations = row.relations

    def alternatives(*fields: str) -> tuple[tuple[Relation, ...], ...]:
        return tuple(
            tuple(_relation(one) for one in group)
            for field in fields
            for group in relations[field] or ()
        )

    return Package(
        deb=Deb(
            name=row["Package"],
            version=row["Version"],
            arch=row["Architecture"],
            sha256=row.get("SHA256", ""),
            size=int(row.get("Size", "0")),
            archive=archive,
            path=row.get("Filename", ""),
        ),
        priority=row.get("Priority", "optional"),
        depends=alternatives("pre-depends", "depends"),
        excludes=tuple(one for group in alternatives("conflicts", "breaks") for one in group),
        provides=tuple(one for group in alternatives("provides") for one in group),
    )


def _relation(parsed: dict[str, Any]) -> Relation:
    operator, version = parsed["version"] or ("", "")
    return Relation(name=parsed["name"], operator=operator, version=version)
