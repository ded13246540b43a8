"""Receipts: what was built and which checks passed, keyed by image digest.

Only an image with a receipt that passes may move.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from imagefactory import __version__
from imagefactory.errors import Problem
from imagefactory.system import files

if TYPE_CHECKING:
    from imagefactory.system.engine import ImageInfo

#: Bytes of a receipt, and seconds of a check, that no real one reaches.
LARGEST, LONGEST = 10_000_000, 1e9


class Outcome(StrEnum):
    """How a check ended. Only PASS is a success; a SKIP always has a reason."""

    PASS = "pass"
    FAIL = "fail"
    SKIP = "skip"


class Level(StrEnum):
    """How far a verification went. Each level includes those before it."""

    STATIC = "static"
    IMPORT = "import"
    SERVE = "serve"
    GPU = "gpu"

    def includes(self, other: Level) -> bool:
        """Whether what reached this level has reached ``other``, too."""
        order = tuple(Level)
        return order.index(self) >= order.index(other)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """One thing that was asserted about an image.

    Attributes:
        name: the check's name in the registry.
        outcome: how it ended.
        required: whether a failure keeps the image from moving.
        detail: what was seen, in one line; for a failure also what was expected.
        seconds: how long it took.
    """

    name: str
    outcome: Outcome
    required: bool
    detail: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """A check that a receipt must have before its image may move.

    Attributes:
        name: the check's name.
        required: whether it must have passed.
        excusable: whether it may have been skipped instead, because it does not apply to every
            image or cannot run on every machine.
    """

    name: str
    required: bool
    excusable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The record of one verification of one image.

    Attributes:
        digest: the image's digest (``sha256:...``) as the engine names it: manifest or index.
        tag: the reference under which it was verified.
        cell: the cell's name, from the image's label.
        build_key: the build key, from the image's label.
        verified_at: RFC 3339, UTC.
        checks: the results, in order.
        version: of the imagefactory that verified it; empty for a version that did not record it.
        unproven: the patches in it of which nothing shows what they do.
        level: how far it was verified; versions that did not record it imported everything.
    """

    digest: str
    tag: str
    cell: str
    build_key: str
    verified_at: str
    checks: tuple[CheckResult, ...]
    version: str = ""
    unproven: tuple[str, ...] = ()
    level: Level = Level.IMPORT

    @property
    def passed(self) -> bool:
        """Whether every required check passed, and there was at least one."""
        required = [check for check in self.checks if check.required]
        return bool(required) and all(check.outcome is Outcome.PASS for check in required)

    def as_dict(self) -> dict[str, Any]:
        """The receipt as plain JSON values, ``passed`` included for readers."""
        return {**asdict(self), "passed": self.passed}

    @property
    def failed_checks(self) -> tuple[str, ...]:
        """The required checks that did not pass."""
        return tuple(c.name for c in self.checks if c.required and c.outcome is not Outcome.PASS)


def save(folder: Path, receipt: Receipt) -> Path:
    """Write ``receipt`` below ``folder`` in one step, replacing an older one of the same digest."""
    folder.mkdir(parents=True, exist_ok=True)
    path = _path(folder, receipt.digest)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(receipt.as_dict(), indent=2) + "\n", encoding="utf-8")
    part.replace(path)
    return path


def load(folder: Path, digest: str) -> Receipt | None:
    """The receipt of exactly ``digest``, or None.

    A file that cannot be read counts as no receipt.
    """
    try:
        return read(json.loads(files.read_text(_path(folder, digest), LARGEST)))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def read(data: Any) -> Receipt:
    """The receipt in JSON values. Raises ValueError, KeyError or TypeError if it is none."""
    fields = {name: data[name] for name in ("digest", "tag", "cell", "build_key", "verified_at")}
    fields["version"] = data.get("version", "")
    checks = [_read_check(row) for row in data["checks"]]
    unproven = data.get("unproven", [])
    if not isinstance(unproven, list):
        raise TypeError("the unproven patches of a receipt are no list of names")
    _must_be_texts((*fields.values(), *unproven))
    level = Level(data.get("level", Level.IMPORT))
    found = Receipt(**fields, checks=tuple(checks), unproven=tuple(unproven), level=level)
    if data["passed"] is not found.passed:
        raise ValueError("it contradicts its checks")
    return found


def _read_check(row: dict[str, Any]) -> CheckResult:
    found = CheckResult(**{**row, "outcome": Outcome(row["outcome"])})
    if type(found.required) is not bool or type(found.seconds) not in (int, float):
        raise TypeError("a field of a check has another type")
    if not 0 <= found.seconds < LONGEST:
        raise ValueError("a check took no such time")
    _must_be_texts((found.name, found.detail))
    return found


def _must_be_texts(values: Iterable[object]) -> None:
    for value in values:
        if not isinstance(value, str):
            raise TypeError("a field is no text")
        value.encode()  # a lone surrogate could not be shown or written


def differences(
    record: Receipt, *, digest: str, cell: str, build_key: str, required: Sequence[Requirement]
) -> list[str]:
    """How ``record`` differs from a receipt of this version for exactly this image.

    ``required`` is every check that this version makes of the image. A check that failed is no
    difference: see ``Receipt.passed``.
    """
    own = {"digest": digest, "cell": cell, "build_key": build_key}
    found = [
        f"its {field.replace('_', ' ')} is {_brief(getattr(record, field))}, expected "
        f"{_brief(value)}"
        for field, value in own.items()
        if getattr(record, field) != value
    ]
    times = Counter(check.name for check in record.checks)
    known = {one.name: one for one in required}
    groups = {
        "lacks": [name for name in known if name not in times],
        "has unknown checks": [name for name in times if name not in known],
        "has twice": [name for name, count in times.items() if count > 1],
        "has as optional": [
            check.name
            for check in record.checks
            if not check.required and not _may_be_optional(check, known.get(check.name))
        ],
    }
    return found + [f"it {what}: {', '.join(names)}" for what, names in groups.items() if names]


def _may_be_optional(check: CheckResult, wanted: Requirement | None) -> bool:
    if wanted is None or not wanted.required:
        return True
    return wanted.excusable and check.outcome is Outcome.SKIP


def _brief(text: str) -> str:
    return repr(text[:40])


def not_passed(folder: Path, tags: Sequence[str], images: Mapping[str, ImageInfo]) -> list[str]:
    """The ``tags`` whose very digest has not passed yet; ``images`` are the engine's, by tag.

    What another version of imagefactory verified counts as not passed: its checks were others.
    """
    before = {tag: load(folder, images[tag].digest) if tag in images else None for tag in tags}
    return [
        tag
        for tag, one in before.items()
        if not (one and one.passed and one.version == __version__)
    ]


def problems(receipts: Sequence[Receipt]) -> list[Problem]:
    """What keeps images from moving: a problem for every required check that did not pass."""
    return [
        Problem(
            code="check-failed",
            where=one.tag,
            what=f"{check.name}: {check.detail}",
            fix="'imagefactory verify --checks' lists what every check asserts",
        )
        for one in receipts
        for check in one.checks
        if check.required and check.outcome is not Outcome.PASS
    ]


def _path(folder: Path, digest: str) -> Path:
    return folder / f"{digest.replace(':', '-')}.json"
