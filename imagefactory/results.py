"""The results of the pipeline's functions, and how they report progress."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from imagefactory.building.building import BuildResult
from imagefactory.building.sites import Site
from imagefactory.errors import Problem
from imagefactory.planning.cell_plan import CellPlan
from imagefactory.planning.decision import Decision
from imagefactory.planning.planning import Bases, Inputs
from imagefactory.system.engine import ImageInfo
from imagefactory.verifying import receipt
from imagefactory.verifying.receipt import Receipt


def _ignore(_: object) -> None:
    """Show nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watcher:
    """Callbacks that show intermediate results as soon as they are known."""

    planned: Callable[[Sequence[Decision]], None] = _ignore
    verified: Callable[[Receipt], None] = _ignore


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """Cells with their plans, and what the plans were made from.

    Attributes:
        inputs: matrix, lock and patches.
        bases: the bases of the images, for their own platforms and for the build platform.
        decisions: a plan for each cell, and what a build does for it.
        images: the engine's images of these cells, by reference; None if no engine answers.
        site: where builds run; None if no engine answers.
    """

    inputs: Inputs
    bases: Bases
    decisions: tuple[Decision, ...]
    images: Mapping[str, ImageInfo] | None
    site: Site | None

    @property
    def plans(self) -> tuple[CellPlan, ...]:
        """The plans, in the order of the cells."""
        return tuple(decision.plan for decision in self.decisions)

    def expected(self) -> dict[str, CellPlan]:
        """The plan that an image should match, by tag."""
        return {tag: plan for plan in self.plans for tag in plan.cell.tags}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """Plans with their Dockerfiles, and the bake file if one was written."""

    plans: tuple[CellPlan, ...]
    bakefile: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """The result of a build.

    Attributes:
        decisions: what was planned for each cell.
        stopped: cell -> problems of its patches that prevent its build.
        results: cell -> result of its build, for the cells that were built.
        receipts: of the images that were verified.
    """

    decisions: tuple[Decision, ...]
    stopped: Mapping[str, tuple[Problem, ...]]
    results: Mapping[str, BuildResult]
    receipts: tuple[Receipt, ...]

    @property
    def problems(self) -> list[Problem]:
        """The problems of all cells."""
        return [
            *(problem for problems in self.stopped.values() for problem in problems),
            *(result.problem for result in self.results.values() if not result.ok),
            *receipt.problems(self.receipts),
        ]
