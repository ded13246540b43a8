"""Receipts: what was built and which checks passed, keyed by image digest.

Only an image with a receipt that passes may move.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from imagefactory.errors import Problem

if TYPE_CHECKING:
    from imagefactory.system.engine import ImageInfo


class Outcome(StrEnum):
    """How a check ended. Only PASS is a success; a SKIP always has a reason."""

    PASS = "pass"
    FAIL = "fail"
    SKIP = "skip"


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
class Receipt:
    """The record of one verification of one image.

    Attributes:
        digest: the image's digest (``sha256:...``) as the engine names it: manifest or index.
        tag: the reference under which it was verified.
        cell: the cell's name, from the image's label.
        build_key: the build key, from the image's label.
        verified_at: RFC 3339, UTC.
        checks: the results, in order.
    """

    digest: str
    tag: str
    cell: str
    build_key: str
    verified_at: str
    checks: tuple[CheckResult, ...]

    @property
    def passed(self) -> bool:
        """Whether every required check passed, and there was at least one."""
        required = [check for check in self.checks if check.required]
        return bool(required) and all(check.outcome is Outcome.PASS for check in required)

    def as_dict(self) -> dict[str, Any]:
        """The receipt as plain JSON values, ``passed`` included for readers."""
        return {**asdict(self), "passed": self.passed}


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
        data = json.loads(_path(folder, digest).read_text(encoding="utf-8"))
        checks: Sequence[dict[str, Any]] = data["checks"]
        return Receipt(
            digest=data["digest"],
            tag=data["tag"],
            cell=data["cell"],
            build_key=data["build_key"],
            verified_at=data["verified_at"],
            checks=tuple(
                CheckResult(**{**check, "outcome": Outcome(check["outcome"])}) for check in checks
            ),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def not_passed(folder: Path, tags: Sequence[str], images: Mapping[str, ImageInfo]) -> list[str]:
    """The ``tags`` whose very digest has not passed yet; ``images`` are the engine's, by tag."""
    before = {tag: load(folder, images[tag].digest) if tag in images else None for tag in tags}
    return [tag for tag, one in before.items() if not (one and one.passed)]


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
