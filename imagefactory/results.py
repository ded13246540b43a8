"""The results of the pipeline's functions, and how they report progress."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from imagefactory.auditing.auditing import Audit
from imagefactory.building.building import BuildResult
from imagefactory.building.sites import Site
from imagefactory.errors import CheckFailedError, FactoryError, InputError, Problem
from imagefactory.planning.cell_plan import CellPlan
from imagefactory.planning.decision import Decision, Uncovered
from imagefactory.planning.planning import Bases, Inputs
from imagefactory.system.engine import ImageInfo
from imagefactory.verifying import receipt
from imagefactory.verifying.receipt import Receipt


def _ignore(_: object) -> None:
    """Show nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watcher:
    """Callbacks that show intermediate results as soon as they are known."""

    planned: Callable[[Planned], None] = _ignore
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
        uncovered: the selected cells that are not locked, if they were left out.
        audits: what earlier audits found out, by cell; None if that was not looked up.
    """

    inputs: Inputs
    bases: Bases
    decisions: tuple[Decision, ...]
    images: Mapping[str, ImageInfo] | None
    site: Site | None
    uncovered: tuple[Uncovered, ...] = ()
    audits: Mapping[str, Audit] | None = None

    @property
    def error(self) -> InputError | None:
        """The problems of the cells that were left out, or None."""
        problems = [problem for one in self.uncovered for problem in one.problems]
        return InputError(dict.fromkeys(problems)) if problems else None

    @property
    def bad(self) -> list[Problem]:
        """What earlier audits found wrong, without repetitions."""
        audits = (self.audits or {}).values()
        return list(dict.fromkeys(problem for one in audits for problem in one.problems))

    @property
    def rows(self) -> tuple[Decision | Uncovered, ...]:
        """A row for each cell: the decisions, then the cells that were left out."""
        return (*self.decisions, *self.uncovered)

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
class Exported:
    """The wheels of one cell as the text of a ``pylock.toml``."""

    cell: str
    wheels: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """The result of a build.

    Attributes:
        planned: what was planned for each cell.
        stopped: cell -> problems of its wheels or patches that prevent its build.
        results: cell -> result of its build, for the cells that were built.
        receipts: of the images that were verified.
    """

    planned: Planned
    stopped: Mapping[str, tuple[Problem, ...]]
    results: Mapping[str, BuildResult]
    receipts: tuple[Receipt, ...]

    @property
    def error(self) -> FactoryError | None:
        """The problems of all cells; InputError if all that is wrong is the lock; or None."""
        problems = [
            *(problem for problems in self.stopped.values() for problem in problems),
            *(result.problem for result in self.results.values() if not result.ok),
            *receipt.problems(self.receipts),
        ]
        unlocked = self.planned.error
        if not problems:
            return unlocked
        return CheckFailedError([*problems, *(unlocked.problems if unlocked else ())])
