"""Shows a running bake: a live view of the cells on a terminal, plain lines elsewhere."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from typing import Self

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from imagefactory.building.progress import Event, Progress, Step, Tally
from imagefactory.building.timings import Timings
from imagefactory.system import ui

#: Steps worth a line of their own in a log; the others (loading definitions, copying small files)
#: only fill it.
LOUD = ("RUN", "exporting", "COPY --link --from")
SHOWN = 110
#: Bytes below which a transfer is not worth showing.
SMALL = 100_000
#: What ninja, and our own compiler program, write when a unit is done.
_COUNTED = re.compile(r"\[\d+/\d+\] ")
#: The folders of the file that such a line ends with.
_FOLDERS = re.compile(r"\S+/(?=\S+\.o$)")
#: "[layer-vllm 2/3] RUN --mount=type=cache,...": the count is that of the stage, and what is
#: mounted says less than the command does.
_STAGE = re.compile(r"^\[(?P<stage>[^\]]*?) ?\d+/\d+\] ")
_FLAGS = re.compile(r"(?<= )--(?:mount|network|security)=\S+ ")


class View:
    """A context manager that is fed a bake's events.

    ``kinds`` says for each cell what kind of build it is, and ``timings`` how long builds of that
    kind took; without them no estimate is shown.
    """

    def __init__(
        self,
        progress: Progress,
        *,
        timings: Timings | None = None,
        kinds: Mapping[str, str] | None = None,
    ) -> None:
        self._began = time.monotonic()
        self._progress = progress
        self._timings = timings
        self._kinds = kinds or {}
        self._counted: dict[str, str] = {}
        self._failed: set[str] = set()
        self._said: set[tuple[str | None, str]] = set()
        self._terminal = ui.err.is_terminal and not ui.err.is_dumb_terminal
        self._live = Live(self, console=ui.err, refresh_per_second=4, transient=True)

    def __enter__(self) -> Self:
        if self._terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def follow(self, progress: Progress) -> None:
        """Show another bake of some of the cells, beside the bakes that run already."""
        self._progress.tallies |= progress.tallies
        self._failed -= progress.tallies.keys()

    def feed(self, event: Event) -> None:
        """Take one event of ``progress``, or of a bake that is followed."""
        if event.log:
            self._count(event)
            return
        failed = event.text.startswith("FAILED")
        for cell in self._cells(event):
            self._counted.pop(cell, None)
            if failed:
                self._failed.add(cell)
        if failed or not self._terminal:
            self._line(event, failed=failed)

    def _cells(self, event: Event) -> list[str]:
        """The cells that an event is about: all of them if it belongs to a shared stage."""
        tallies = self._progress.tallies
        return [event.target] if event.target in tallies else list(tallies)

    def _count(self, event: Event) -> None:
        """Show the counted lines of a program that compiles for hours.

        Such as ``[3/101] Building CUDA object ...``.
        """
        lines = [_FOLDERS.sub("", line) for line in event.text.splitlines() if _COUNTED.match(line)]
        for cell in self._cells(event) if lines else ():
            self._counted[cell] = lines[-1]
        if not self._terminal:
            for line in lines:
                self._print(event, line[:SHOWN])

    def _line(self, event: Event, *, failed: bool) -> None:
        """A line of the log for an event that is worth one."""
        verb, _, text = event.text.partition(" ")
        if (event.target, event.text) in self._said or not (failed or _is_loud(event, verb)):
            return
        self._said.add((event.target, event.text))
        if failed:
            self._print(event, _label(text), style="red", before="FAILED ")
            return
        counts = self._counts(event.target)
        self._print(event, f"{counts}{_label(text)[:SHOWN]}{_end(event, verb)}")

    def _counts(self, target: str | None) -> str:
        tally = self._progress.tallies.get(target or "")
        return f"[{tally.done}/{tally.known}] " if tally and tally.known else ""

    def _print(self, event: Event, text: str, *, style: str = "cyan", before: str = "") -> None:
        seconds = ui.styled(f"{time.monotonic() - self._began:6.1f}s ", "dim")
        target = ui.styled(f"{event.target or 'build'} ", style)
        ui.err.print(Text.assemble(seconds, target, ui.safe(before + text)))

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        for line in self.lines(options.max_width, options.size.height):
            line.truncate(options.max_width, overflow="ellipsis")
            yield line

    def lines(self, width: int, height: int) -> Iterator[Text]:
        """What is shown on a terminal of ``width`` columns and ``height`` rows."""
        tallies = self._progress.tallies
        order = sorted(tallies, key=lambda cell: self._rank(cell, tallies[cell]))
        most = max((height - 3) // 2, 1)
        left = _about(self._left())
        elapsed = _clock(time.monotonic() - self._began)
        number = f"{len(order)} cells" if len(order) > 1 else next(iter(order), "nothing")
        yield Text.assemble(("building ", "bold"), f"{number}  {elapsed}", (left, "dim"))
        for cell in order[:most]:
            if len(order) > 1:
                yield ui.styled(f"  {ui.shorten(cell, width - 2)}", "cyan")
            yield self._state(cell, tallies[cell], width)
        if order[most:]:
            yield ui.styled(f"  and {self._rest([tallies[cell] for cell in order[most:]])}", "dim")

    def _rank(self, cell: str, tally: Tally) -> int:
        """Running cells first, then what failed, what waits and what is done."""
        if cell in self._failed:
            return 1
        return 0 if tally.running else 3 if _is_done(tally) else 2

    def _state(self, cell: str, tally: Tally, width: int) -> Text:
        step = next(iter(tally.running.copy().values()), None)
        if cell in self._failed:
            what, style = "failed", "red"
        elif step is None:
            what, style = ("done", "green") if _is_done(tally) else ("waiting", "dim")
        else:
            what, style = self._counted.get(cell) or _doing(step), ""
        counts = f"    {self._counts(cell)}"
        moved = f"  {_moved(step)}" if step and _moved(step) else ""
        more = f"  +{len(tally.running) - 1}" if len(tally.running) > 1 else ""
        room = max(width - len(counts) - len(moved) - len(more), 10)
        what = " ".join(what.split())
        what = what if len(what) <= room else f"{what[: room - 1]}…"
        return Text.assemble((counts, "dim"), ui.styled(what, style), f"{moved}", (more, "dim"))

    @staticmethod
    def _rest(tallies: list[Tally]) -> str:
        done, running = sum(map(_is_done, tallies)), sum(bool(one.running) for one in tallies)
        waiting = len(tallies) - done - running
        counts = ((running, "running"), (waiting, "waiting"), (done, "done"))
        named = ", ".join(f"{number} {word}" for number, word in counts if number)
        return f"{len(tallies)} more: {named}"

    def _left(self) -> float | None:
        """Seconds until the last cell is done, as far as earlier builds say."""
        if self._timings is None:
            return None
        elapsed = time.monotonic() - self._began
        found = [
            self._timings.estimate(self._kinds.get(cell, ""), warm=tally.warm)
            for cell, tally in self._progress.tallies.items()
            if tally.known and not _is_done(tally)
        ]
        known = [seconds for seconds in found if seconds is not None]
        return max(known) - elapsed if known and len(known) == len(found) else None


def _is_done(tally: Tally) -> bool:
    return tally.exported and not tally.running


def _is_loud(event: Event, verb: str) -> bool:
    if verb == "start":
        return "RUN" in event.text and not (event.step and event.step.cached)
    return any(word in event.text for word in LOUD) and "LINK COPY" not in event.text


def _label(name: str) -> str:
    """The name of a step, in short: its stage and its command."""
    text = _FLAGS.sub("", " ".join(name.split()))
    return _STAGE.sub(lambda found: f"{found['stage']} " if found["stage"] else "", text)


def _doing(step: Step) -> str:
    part = f": {step.part}" if step.part and step.name.startswith("exporting") else ""
    return _label(step.name) + part


def _moved(step: Step) -> str:
    if step.total >= SMALL:
        return f"{ui.size(step.current)} of {ui.size(step.total)}"
    return ui.size(step.current) if step.current >= SMALL else ""


def _end(event: Event, verb: str) -> str:
    if verb == "cached":
        return "  cached"
    seconds = event.step.seconds if event.step else None
    return " ..." if verb == "start" else "  done" if seconds is None else f"  {_clock(seconds)}"


def _clock(seconds: float) -> str:
    """A duration for people: ``34 s``, ``3 min 20 s``, ``2 h 5 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _about(seconds: float | None) -> str:
    """How much longer it takes, no more exact than that is known; empty if it is not."""
    if seconds is None or seconds < 5:
        return ""
    if seconds < 55:
        return f"  about {max(round(seconds / 10) * 10, 10)} s left"
    minutes = max(round(seconds / 60), 1)
    hours = f"{minutes // 60} h {minutes % 60} min" if minutes >= 90 else f"{minutes} min"
    return f"  about {hours} left"
