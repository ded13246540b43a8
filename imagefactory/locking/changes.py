"""How two locks differ: a row for each wheel, and a short summary of each set of wheels. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from imagefactory.locking.lock import Lock, Wheel

#: The name of the set of wheels that unpack others.
UNPACKER = "unpacker"
#: The name of the git refs.
REFS = "refs"
#: So few changes are all named in a summary.
FEW = 3


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
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The changes of one resolution, toolchain or of the unpacker, in numbers.

    Attributes:
        resolution: the name of the set of wheels.
        added: number of wheels; ``changed`` and ``removed`` likewise.
        named: the changes that are worth a name: all of a few, else those of pinned packages.
    """

    resolution: str
    added: int
    changed: int
    removed: int
    named: tuple[Change, ...]

    def __str__(self) -> str:
        counts = {"added": self.added, "changed": self.changed, "removed": self.removed}
        text = ", ".join(f"{what} {number}" for what, number in counts.items() if number)
        named = ", ".join(_short(change) for change in self.named)
        return f"{self.resolution}: {text}" + (f" ({named})" if named else "")

    def as_dict(self) -> dict[str, object]:
        """The summary as plain JSON values, without the named changes."""
        return {
            "resolution": self.resolution,
            "added": self.added,
            "changed": self.changed,
            "removed": self.removed,
        }


def _short(change: Change) -> str:
    if change.old and change.new:
        return f"{change.package} {change.old} -> {change.new}"
    return f"{change.package} {change.new or change.old}"


def between(old: Lock | None, new: Lock) -> list[Change]:
    """Every wheel whose version differs, sorted by resolution and package."""
    before, after = _versions(old), _versions(new)
    keys = sorted({*before, *after})
    rows = [(*key, before.get(key, ""), after.get(key, "")) for key in keys]
    return [Change(resolution=n, package=p, old=o, new=w) for n, p, o, w in rows if o != w]


def summarize(
    changes: Iterable[Change], new: Lock, asked_for: Collection[str] = ()
) -> list[Summary]:
    """A summary of each set of wheels that changed; packages in ``asked_for`` are always named."""
    grouped: dict[str, list[Change]] = {}
    for change in changes:
        grouped.setdefault(change.resolution, []).append(change)
    pins = _pins(new)
    return [
        _summary(name, rows, {*pins.get(name, ()), *map(canonicalize_name, asked_for)})
        for name, rows in grouped.items()
    ]


def _summary(name: str, rows: list[Change], important: Collection[str]) -> Summary:
    return Summary(
        resolution=name,
        added=sum(not row.old for row in rows),
        changed=sum(bool(row.old and row.new) for row in rows),
        removed=sum(not row.new for row in rows),
        named=tuple(row for row in rows if len(rows) <= FEW or row.package in important),
    )


def _pins(lock: Lock) -> dict[str, set[str]]:
    """The packages that each set of wheels was requested with."""
    requested = {r.name: r.requirements for r in lock.resolutions} | {
        f"{t.name} {t.platform}": t.requirements for t in lock.toolchains
    }
    return {
        name: {canonicalize_name(Requirement(line).name) for line in lines}
        for name, lines in requested.items()
    }


def _versions(lock: Lock | None) -> Mapping[tuple[str, str], str]:
    if lock is None:
        return {}
    parts: dict[str, Iterable[Wheel]] = {r.name: r.wheels for r in lock.resolutions}
    parts |= {f"{t.name} {t.platform}": t.wheels for t in lock.toolchains}
    parts[UNPACKER] = [one.wheel for one in lock.unpackers]
    found = {(name, w.name): w.version for name, wheels in parts.items() for w in wheels}
    return found | {(REFS, f"{one.name} on {one.base}"): one.version for one in lock.refs}
