"""Spreads cells over several builders: each gets more cells whenever it has none left.

Within a bake BuildKit decides what runs when; here it is only decided which builder a cell goes to.
That is the one that built it last, whose cache has its steps, and any that is idle for a cell that
none of them has built. A builder with nothing else to do takes cells of others, too. What a builder
that is lost did not finish goes to those that are left.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from imagefactory.errors import SetupError
from imagefactory.system import ui

#: How Buildx says that the connection to BuildKit was lost, and not that a step failed.
_LOST = re.compile(
    r"code = Unavailable|failed to dial|error reading from server|transport is closing"
    r"|failed to (?:get|find) (?:builder|driver)|no builder .* found"
)


#: Builds cells on a builder; returns why cells failed.
Bake = Callable[[str, Sequence[str]], Mapping[str, str]]


@dataclass(kw_only=True)
class Queue:
    """The cells that wait for a builder, which a thread for each builder takes them from.

    Attributes:
        waiting: in the order of the matrix.
        homes: cell -> the builder that has its cache.
        alive: the builders that are not lost.
        busy: the builders that have cells.
        lost: builder -> why it is lost.
    """

    waiting: list[str]
    homes: Mapping[str, str]
    alive: list[str]
    busy: set[str] = field(default_factory=set)
    lost: dict[str, str] = field(default_factory=dict)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def take(self, builder: str) -> list[str]:
        """The next cells for ``builder``; empty if nothing is left for it to do.

        Waits while others are busy: if one of them is lost, its cells are waiting again.
        """
        with self.changed:
            self.busy.discard(builder)
            self.changed.notify_all()
            self.changed.wait_for(lambda: builder in self.lost or self.waiting or not self.busy)
            if builder in self.lost or not self.waiting:
                return []
            own = self._kind(builder)
            taken = own[: math.ceil(len(own) / (2 * len(self.alive)))]
            self.waiting = [cell for cell in self.waiting if cell not in taken]
            self.busy.add(builder)
            return taken

    def _kind(self, builder: str) -> list[str]:
        """The cells that ``builder`` may take: its own first, those of others last."""
        own = [cell for cell in self.waiting if self.homes.get(cell) == builder]
        free = [cell for cell in self.waiting if self.homes.get(cell) not in self.alive]
        return own or free or self.waiting[::-1]  # others begin with their first ones

    def leave(self, builder: str) -> None:
        """Nobody takes cells for ``builder`` any more."""
        with self.changed:
            self.busy.discard(builder)
            self.changed.notify_all()

    def lose(self, builder: str, cells: Sequence[str], why: str) -> None:
        """Take ``builder`` out; the others get the ``cells`` that it did not finish."""
        with self.changed:
            self.alive.remove(builder)
            self.lost[builder] = why
            self.waiting[:0] = cells


def spread(
    queue: Queue,
    bake: Bake,
    answers: Callable[[str], object],
    interrupted: threading.Event,
) -> dict[str, str]:
    """Let each builder of ``queue`` bake cells until none is left.

    ``answers`` raises SetupError if a builder is gone. If this is interrupted, ``interrupted`` is
    set, and the bakes have to end. Returns the cells that no builder is left for, with the reason.
    """
    with ThreadPoolExecutor(len(queue.alive)) as pool:
        try:
            working = [pool.submit(_work, queue, n, bake, answers) for n in (*queue.alive,)]
            for done in wait(working, return_when=FIRST_EXCEPTION).done:
                done.result()
        except BaseException:
            interrupted.set()
            queue.waiting.clear()
            raise
    why = "; ".join(f"{name}: {text}" for name, text in queue.lost.items())
    return dict.fromkeys(queue.waiting, f"no builder is left ({why})")


def _work(queue: Queue, builder: str, bake: Bake, answers: Callable[[str], object]) -> None:
    """What the thread of one builder does."""
    try:
        while cells := queue.take(builder):
            ui.say(f"{builder} builds {', '.join(cells)}")
            try:
                failed = bake(builder, cells)
                why = _lost(builder, failed, answers)
            except SetupError as error:
                failed, why = dict.fromkeys(cells, ""), error.problems[0].what
            if why:
                ui.warn(f"builder {builder} is lost, and other builders get its cells: {why}")
                queue.lose(builder, [cell for cell in cells if cell in failed], why)
    finally:
        queue.leave(builder)


def _lost(builder: str, failed: Mapping[str, str], answers: Callable[[str], object]) -> str:
    """Why ``builder`` cannot be used any more; empty if it can."""
    said = next((text for text in failed.values() if _LOST.search(text)), "")
    if said or not failed:
        return said
    try:
        answers(builder)
    except SetupError as error:
        return error.problems[0].what
    return ""
