"""What a check of the machine has found."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum


class Health(StrEnum):
    """The severity of a finding; only BAD makes doctor exit with 3."""

    GOOD = "good"
    NOTE = "note"
    BAD = "bad"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check, and the remedy if it is not good."""

    name: str
    health: Health
    seen: str
    remedy: str = ""

    def as_dict(self) -> dict[str, str]:
        """The finding as plain JSON values."""
        return asdict(self)


def of(name: str, seen: str, remedy: str = "") -> Finding:
    """A finding that is good if nothing has to be done about it, and a note otherwise."""
    return Finding(
        name=name, health=Health.NOTE if remedy else Health.GOOD, seen=seen, remedy=remedy
    )
