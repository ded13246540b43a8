"""Attacks on the factory: seeded, repeatable, and longer on request (`make faults`).

Every other module of this package is an attack: it has a docstring, whose first line names it, and
``attack(seed, count, folder)``, which tries ``count`` faults made from ``seed`` and yields an
outcome for each. An attack with a fixed list of faults may yield fewer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one fault led to: ``held`` if the factory answered as it should."""

    fault: str
    held: bool
    detail: str = ""


class Attack(Protocol):
    """A module of this package."""

    __doc__: str | None

    def attack(self, seed: int, count: int, folder: Path) -> Iterator[Outcome]:
        """Try ``count`` faults made from ``seed``; ``folder`` is empty and may be filled."""
