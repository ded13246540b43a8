"""What a person sees: results on standard output, progress and commands on standard error.

rich decides what a terminal can show, honours ``NO_COLOR`` and writes plain lines into pipes and CI
logs.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from imagefactory.errors import FactoryError

__all__ = [
    "command",
    "emit_json",
    "err",
    "escape",
    "failure",
    "out",
    "say",
    "size",
    "step",
    "table",
    "warn",
]

#: Columns where no terminal says how many there are: CI logs scroll sideways, folded digests cannot
#: be copied.
WIDE = None if "COLUMNS" in os.environ or sys.stdout.isatty() else 160

out = Console(highlight=False, soft_wrap=True, width=WIDE)
err = Console(stderr=True, highlight=False, soft_wrap=True)


def say(text: str) -> None:
    """One progress line."""
    err.print(escape(text))


def command(line: str) -> None:
    """A program that is about to run, as a person could type it."""
    err.print(f"[dim]$ {escape(line)}[/dim]")


def warn(text: str) -> None:
    """Something that a person should know and that stops nothing."""
    err.print(f"[yellow]warning:[/yellow] {escape(text)}")


def failure(error: FactoryError) -> None:
    """All problems of ``error``, one after the other."""
    for problem in error.problems:
        where = f"[bold]{escape(problem.where)}:[/bold] " if problem.where else ""
        err.print(f"[red]error:[/red] {where}{escape(problem.what)} [dim]\\[{problem.code}][/dim]")
        for line in problem.detail.splitlines():
            err.print(f"  [dim]{escape(line)}[/dim]")
        if problem.fix:
            err.print(f"  [green]fix:[/green] {escape(problem.fix)}")
    if len(error.problems) > 1:
        err.print(f"[red]{len(error.problems)} errors[/red]")


def size(number: int) -> str:
    """Bytes for people, as Docker writes them."""
    if number >= 1e8:
        return f"{number / 1e9:.2f} GB"
    return f"{number / 1e6:.1f} MB" if number >= 1e5 else f"{number / 1e3:.1f} kB"


def emit_json(value: object) -> None:
    """``value`` as JSON on standard output, the same bytes on a terminal and in a pipe."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """A table on standard output; cells may carry rich markup."""
    grid = Table(title=title, title_justify="left", header_style="bold")
    for column in columns:
        grid.add_column(column, overflow="fold")
    for row in rows:
        grid.add_row(*row)
    out.print(grid, soft_wrap=False)


@contextmanager
def step(text: str) -> Iterator[None]:
    """A long step: a spinner on a terminal, a line before and after elsewhere."""
    began = time.monotonic()
    if err.is_terminal:
        with err.status(escape(text)):
            yield
    else:
        say(f"{text} ...")
        yield
    say(f"{text}: done in {time.monotonic() - began:.0f} s")
