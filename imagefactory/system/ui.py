"""What a person or a program sees: results on standard output, all else on standard error.

Three rules hold for everything that is printed here:

* A ``str`` is data and is printed as it is: markup, emoji codes and terminal escapes in it mean
  nothing. What has a style is made with ``styled``.
* On a terminal lines and tables fit its width; in a pipe or a CI log there are no boxes, no colours
  and no wrapped values. rich decides which it is, and honours ``NO_COLOR``.
* With ``--json`` standard output holds exactly one JSON document. A command hands its result to
  ``emit_json``; ``finish`` writes it when the command has ended. If the command fails:

  - without a result, the document is ``{"errors": [...], "exit_code": n}``;
  - with an object as its result, those two keys are added to it;
  - with a list as its result, the list keeps its shape: its rows say what failed.

  Standard error has the errors as text in every case. An error has the keys ``code``, ``what``,
  ``where``, ``fix`` and ``detail``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text

from imagefactory import redaction
from imagefactory.errors import FactoryError
from imagefactory.system import tables
from imagefactory.system.text import Part, join, safe, shorten, styled

__all__ = [
    "Part",
    "command",
    "emit_json",
    "err",
    "failure",
    "finish",
    "line",
    "out",
    "safe",
    "say",
    "shorten",
    "size",
    "step",
    "styled",
    "table",
    "warn",
]

#: Columns of what is not a terminal and does not say: CI logs scroll sideways.
_TO_TERMINAL = sys.stdout is not None and sys.stdout.isatty()  # a closed one is None
WIDE = None if "COLUMNS" in os.environ or _TO_TERMINAL else 160
#: Columns that a terminal is assumed to have at least.
LEAST = 80
#: Characters of one error: some quote what a file says, which may be a book. Lists of what there is
#: to choose from, such as the units of a build, have thousands.
LONGEST = 20_000

out = Console(highlight=False, markup=False, emoji=False, soft_wrap=True, width=WIDE)
err = Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)

#: The result of the command that is running, until ``finish`` writes it.
_results: list[object] = []


def line(*parts: Part) -> None:
    """One line of a result on standard output."""
    out.print(join(*parts))


def say(text: str) -> None:
    """One progress line."""
    err.print(join(text))


def command(shown: str) -> None:
    """A program that is about to run, in short; the log of commands has all of it."""
    err.print(styled(f"$ {shown}", "dim"))


def warn(text: str) -> None:
    """Something that a person should know and that stops nothing."""
    err.print(join(styled("warning:", "yellow"), f" {text}"))


def failure(error: FactoryError) -> None:
    """All problems of ``error``, one after the other.

    On a terminal what is wrong is wrapped between words. What to do is not: it may be a command, to
    be copied as one line.
    """
    for problem in error.problems:
        where = (styled(f"{problem.where}:", "bold"), " ") if problem.where else ()
        code = styled(f" [{problem.code}]", "dim")
        said = shorten(safe(problem.what), LONGEST)
        what = join(styled("error:", "red"), " ", *where, said, code)
        for part in tables.wrap(what, err.width) if err.file.isatty() else [what]:
            err.print(part)
        for text in problem.detail.splitlines():
            err.print(styled(f"  {text}", "dim"))
        if problem.fix:
            err.print(join("  ", styled("fix:", "green"), f" {problem.fix}"))
    if len(error.problems) > 1:
        err.print(styled(f"{len(error.problems)} errors", "red"))


def size(number: int | None) -> str:
    """Bytes for people, as Docker writes them; None if they are unknown."""
    if number is None:
        return "unknown"
    if number >= 1e8:
        return f"{number / 1e9:.2f} GB"
    return f"{number / 1e6:.1f} MB" if number >= 1e5 else f"{number / 1e3:.1f} kB"


def emit_json(value: object) -> None:
    """Take ``value`` as the result of the command; ``finish`` writes it.

    Raises ValueError for a second result: there is one document on standard output.
    """
    if _results:
        raise ValueError("a command has one result")
    _results.append(value)


def finish(error: FactoryError | None = None, exit_code: int = 0, *, wanted: bool = True) -> None:
    """Write the JSON document of the command that has ended: its result, its errors, or both.

    ``wanted`` is whether ``--json`` was on the command line. Secrets are left out. Non-ASCII
    characters are escaped, so that the bytes are the same on every terminal and in a pipe.
    """
    value = _results.pop() if _results else None
    failed = error is not None and wanted
    if error is not None and failed and (value is None or isinstance(value, dict)):
        errors = [problem.as_dict() for problem in error.problems]
        value = {**(value or {}), "errors": errors, "exit_code": exit_code}
    if value is not None:
        sys.stdout.write(json.dumps(redaction.hide_in(value), indent=2) + "\n")
        sys.stdout.flush()


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Part]]) -> None:
    """A table on standard output, under ``title`` if that is not empty.

    A ``str`` cell is data, a cell with a style is made with ``styled``. On a terminal the table
    fits its width (80 columns at least); in a pipe a row is one line, with two spaces or more
    between its values.
    """
    if title:
        out.print(styled(title, "bold"))
    width = max(out.width, LEAST) if out.file.isatty() else None
    for shown in tables.layout(columns, rows, width=width):
        out.print(shown)


@contextmanager
def step(text: str) -> Iterator[None]:
    """A long step: a spinner on a terminal, a line before and after elsewhere."""
    began = time.monotonic()
    if err.is_terminal:
        with err.status(Text(safe(text))):
            yield
    else:
        say(f"{text} ...")
        yield
    say(f"{text}: done in {time.monotonic() - began:.0f} s")
