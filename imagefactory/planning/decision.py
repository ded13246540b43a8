"""Decides which plans to build, from the images that the engine already has. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from imagefactory.errors import Problem
from imagefactory.matrix.cell import Cell
from imagefactory.planning.cell_plan import LABEL, CellPlan

if TYPE_CHECKING:
    from imagefactory.system.engine import ImageInfo


class Action(StrEnum):
    """What a build does for a cell."""

    BUILD = "build"
    SKIP = "skip"
    #: Nothing, as the cell could not be planned.
    BLOCKED = "blocked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A plan, what a build does for it, and why."""

    plan: CellPlan
    action: Action
    reason: str

    def as_dict(self) -> dict[str, object]:
        """The decision as plain JSON values."""
        return {
            **_described(self.plan.cell),
            "build_key": self.plan.build_key,
            "action": self.action,
            "reason": self.reason,
            "unproven": list(self.plan.unproven),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncovered:
    """A cell without a plan: the lock lacks what ``problems`` say."""

    cell: Cell
    problems: tuple[Problem, ...]

    @property
    def reason(self) -> str:
        """Why it is blocked, in one sentence."""
        return self.problems[0].what

    def as_dict(self) -> dict[str, object]:
        """As a decision's plain JSON values, without a build key."""
        return {
            **_described(self.cell),
            "build_key": None,
            "action": Action.BLOCKED,
            "reason": self.reason,
            "unproven": [],
        }


def _described(cell: Cell) -> dict[str, object]:
    return {
        "cell": cell.name,
        "platform": cell.platform,
        "pins": cell.pins,
        "tags": list(cell.tags),
    }


def decide(
    plans: Sequence[CellPlan], images: Mapping[str, ImageInfo] | None
) -> tuple[Decision, ...]:
    """Decide for each plan; ``images`` are the engine's, by reference; None without an engine."""
    return tuple(_decide(plan, images) for plan in plans)


def _decide(plan: CellPlan, images: Mapping[str, ImageInfo] | None) -> Decision:
    reason = _reason_to_build(plan, images)
    if reason:
        return Decision(plan=plan, action=Action.BUILD, reason=reason)
    return Decision(plan=plan, action=Action.SKIP, reason="unchanged since it was built")


def _reason_to_build(plan: CellPlan, images: Mapping[str, ImageInfo] | None) -> str:
    if images is None:
        return "no engine answers, so existing images are unknown"
    image = images.get(plan.cell.tag)
    if image is None:
        return f"no image {plan.cell.tag}"
    key = image.labels.get(f"{LABEL}.build-key", "")
    if key != plan.build_key:
        return f"build key was {key[:12] or 'none'}, is {plan.build_key[:12]}"
    return ""
