"""What the steps of a night take and give. Pure; every value can be kept in the journal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from imagefactory.errors import FactoryError, Problem, SetupError, of_the_machine

if TYPE_CHECKING:
    from imagefactory.workspace import Workspace


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a night is asked to do.

    Attributes:
        to: another repository than the matrix's.
        push: whether to push, and to move tags.
        branch: the git branch for the result.
        max_cells: how many cells may be built; None for all.
        max_minutes: after how many minutes no further build begins; None for no limit.
        now: when it began.
    """

    to: str | None
    push: bool
    branch: str
    max_cells: int | None
    max_minutes: float | None
    now: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """What broke, and in which step.

    Attributes:
        where: a cell, a row with its change, a patch, or what else it was.
        step: such as ``lock``.
        problems: what is wrong with it.
        environment: whether the machine, the network or a registry is to blame.
    """

    where: str
    step: str
    problems: tuple[Problem, ...]
    environment: bool = False


def broken(where: str, step: str, error: FactoryError | OSError) -> Broken:
    """``error`` as what broke."""
    known = error if isinstance(error, FactoryError) else of_the_machine(error)
    lacks = isinstance(known, SetupError)
    return Broken(where=where, step=step, problems=known.problems, environment=lacks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What is new upstream.

    Attributes:
        news: each in one line.
        fingerprint: the same as long as nothing changes that a night would act upon.
        broken: what could not be looked up.
    """

    news: tuple[str, ...]
    fingerprint: str
    broken: tuple[Broken, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The result of a step.

    Attributes:
        lines: what it did, for the report.
        broken: what broke.
        stops: the cells that cannot go on because of that.
    """

    lines: tuple[str, ...] = ()
    broken: tuple[Broken, ...] = ()
    stops: tuple[str, ...] = ()


class Need(StrEnum):
    """What a cell still needs."""

    BUILD = "build"
    #: Its image is in the engine.
    VERIFY = "verify"
    #: Its image is in the registry with all its tags, and a receipt vouches for it.
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A cell, and what it still needs."""

    cell: str
    need: Need


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """What there is to do: the cells, and which of them each nightly tag is for.

    Attributes:
        cells: in the order of the matrix.
        tags: pairs of a moving tag and the cell whose image is to have it.
        broken: the cells that could not be planned.
    """

    cells: tuple[Target, ...]
    tags: tuple[tuple[str, str], ...] = ()
    broken: tuple[Broken, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stations:
    """What a night calls, one after the other; each raises FactoryError for what fails.

    Each finds what an earlier call did, so that a call which was cut off can be repeated. Only
    ``take`` and ``patches`` write, and only into the project of the workspace.

    Attributes:
        detect: what is new.
        take: writes candidate rows into the matrix, and the lock.
        patches: checks the patches of what changed, and ports those that drifted.
        targets: what is to be done for each cell.
        build: builds a cell; what it did, in one line, as the others.
        verify: verifies a cell's image unless it has passed.
        push: pushes a cell's image.
        promote: gives a moving tag to a cell's image.
    """

    detect: Callable[[Workspace], Found]
    take: Callable[[Workspace], Done]
    patches: Callable[[Workspace], Done]
    targets: Callable[[Workspace], Targets]
    build: Callable[[Workspace, str], str]
    verify: Callable[[Workspace, str], str]
    push: Callable[[Workspace, str], str]
    promote: Callable[[Workspace, str, str], str]


class Tree(Protocol):
    """The copy of the project that a night works in."""

    @property
    def workspace(self) -> Workspace:
        """The copy."""

    def restore(self, *names: str) -> None:
        """Give files or folders of the project their state from before the night; all if none."""

    def changed(self) -> tuple[str, ...]:
        """The files that the night changed."""

    def keep(self, report: str) -> str:
        """Keep the changed files, with the report; where they are, in one line."""


class State(StrEnum):
    """How a night ended."""

    QUIET = "nothing new"
    GREEN = "green"
    LEFT = "green so far, budget reached"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What became of a cell; ``state`` is one or two words."""

    cell: str
    state: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Night:
    """A night, for its report.

    Attributes:
        began: when.
        project: folder that paths in texts are relative to.
        news: what was new.
        did: what was taken over, locked and ported.
        cells: a row for each.
        tags: what became of each moving tag.
        broken: what broke.
        left: cells that the budget did not allow.
        changed: files that changed.
        kept: where they are.
        quiet: whether there was nothing to do.
        notes: what a reader should know besides.
    """

    began: datetime
    project: Path
    news: tuple[str, ...] = ()
    did: tuple[str, ...] = ()
    cells: tuple[Row, ...] = ()
    tags: tuple[str, ...] = ()
    broken: tuple[Broken, ...] = ()
    left: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    kept: str = ""
    quiet: bool = False
    notes: tuple[str, ...] = ()

    @property
    def state(self) -> State:
        """How it ended."""
        if self.broken:
            return State.BROKEN
        if self.quiet:
            return State.QUIET
        return State.LEFT if self.left else State.GREEN

    @property
    def exit_code(self) -> int:
        """0, 1 if something broke, 3 if that was the environment alone."""
        if not self.broken:
            return 0
        return 3 if all(one.environment for one in self.broken) else 1
