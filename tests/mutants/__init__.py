"""Mutants of patches and of the factory's own code: what survives is not tested (`make mutants`).

Every other module of this package is a campaign: its docstring's first line names it, and
``campaign(folder)`` yields a mutant at a time, with whether a test or a proof killed it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A mutant that was tried.

    Attributes:
        subject: the patch or the room of the factory that it changes.
        change: what it changes, as ``file:line: before -> after``.
        killed: a test or a proof went red.
        ended: it was killed because its tests ended without a verdict, or never.
        harmless: why it changes no behaviour, for a mutant that need not be killed.
    """

    subject: str
    change: str
    killed: bool
    ended: bool = False
    harmless: str = ""


class Campaign(Protocol):
    """A module of this package."""

    __doc__: str | None

    def campaign(self, folder: Path) -> Iterator[Mutant]:
        """Try mutants, one at a time; ``folder`` is empty and may be filled."""
