"""Shows a running bake: a live line a cell on a terminal, plain lines elsewhere."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Self

from rich.live import Live
from rich.table import Table

from imagefactory.building.progress import Event
from imagefactory.system import ui

#: Steps worth a line of their own in a log; the others (loading definitions, copying small files)
#: only fill it.
LOUD = ("RUN", "exporting", "COPY --link --from")
SHOWN = 110
#: What ninja, and our own compiler program, write when a unit is done.
_COUNTED = re.compile(r"\[\d+/\d+\] ")
#: The folders of the file that such a line ends with.
_FOLDERS = re.compile(r"\S+/(?=\S+\.o$)")


class View:
    """A context manager that events are fed to."""

    def __init__(self, cells: Sequence[str]) -> None:
        self._began = time.monotonic()
        self._now = dict.fromkeys(cells, "waiting")
        self._done = dict.fromkeys(cells, 0)
        self._said: set[str] = set()
        self._live = Live(
            get_renderable=self._table, console=ui.err, refresh_per_second=4, transient=True
        )

    def __enter__(self) -> Self:
        if ui.err.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def feed(self, event: Event) -> None:
        """Take one event; what belongs to a shared stage is shown for every cell that waits for
        it.
        """
        if event.log:
            self._count(event)
            return
        for cell in [event.target] if event.target in self._now else list(self._now):
            self._now[cell] = event.text
            self._done[cell] += event.text.startswith(("done", "cached"))
        failed = event.text.startswith("FAILED")
        if failed or not ui.err.is_terminal:
            self._line(event, failed=failed)

    def _count(self, event: Event) -> None:
        """Show the counted lines of a program that compiles for hours.

        Such as ``[3/101] Building CUDA object ...``.
        """
        lines = [_FOLDERS.sub("", line) for line in event.text.splitlines() if _COUNTED.match(line)]
        if not lines:
            return
        for cell in [event.target] if event.target in self._now else list(self._now):
            self._now[cell] = lines[-1]
        if not ui.err.is_terminal:
            for line in lines:
                seconds = time.monotonic() - self._began
                ui.err.print(
                    f"[dim]{seconds:6.1f}s[/dim] [cyan]{event.target or 'build'}[/] "
                    f"{ui.escape(line[:SHOWN])}"
                )

    def _line(self, event: Event, *, failed: bool) -> None:
        text = " ".join(event.text.split())
        line = f"{event.target or 'build'} {text[:SHOWN]}"
        if line in self._said or not (
            failed or (any(word in text for word in LOUD) and "LINK COPY" not in text)
        ):
            return
        self._said.add(line)
        style = "red" if failed else "cyan"
        seconds = time.monotonic() - self._began
        shown = text if failed else text[:SHOWN]
        ui.err.print(
            f"[dim]{seconds:6.1f}s[/dim] [{style}]{event.target or 'build'}[/] {ui.escape(shown)}"
        )

    def _table(self) -> Table:
        grid = Table.grid(padding=(0, 2))
        seconds = f"{time.monotonic() - self._began:.0f} s"
        for cell, text in self._now.items():
            grid.add_row(
                f"[cyan]{cell}[/]",
                f"{self._done[cell]} steps",
                seconds,
                ui.escape(" ".join(text.split())[:60]),
            )
        return grid
