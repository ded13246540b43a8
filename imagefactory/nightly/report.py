"""The report of a night, as Markdown. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from imagefactory import redaction
from imagefactory.errors import Problem
from imagefactory.nightly.values import Broken, Night
from imagefactory.reporting.markdown import fenced
from imagefactory.system.text import encodable

#: How to find out more about a release that broke something.
BISECT = "`imagefactory bisect CELL --bad VERSION` finds the first bad version, and its commits."


def markdown(night: Night) -> str:
    """The report: how the night ended, then what broke, then everything else."""
    text = "\n".join(_lines(night))
    # what is relative to the project can be opened in any checkout of it
    return encodable(redaction.hide(text.replace(f"{night.project}/", ""))) + "\n"


def _lines(night: Night) -> Iterator[str]:
    yield f"# Night of {night.began:%Y-%m-%d}: {night.state}"
    for note in night.notes:
        yield from ("", f"Note: {note}")
    for one in night.broken:
        yield from _broken(one)
    if any(_is_of_a_version(one) for one in night.broken):
        yield from ("", BISECT)
    yield from _section("What is new", night.news)
    yield from _section("What was done", night.did)
    if night.cells:
        yield from ("", "## Cells", "", "| cell | state | details |", "| --- | --- | --- |")
        for row in night.cells:
            yield f"| {_cell(row.cell)} | {row.state} | {_cell('; '.join(row.notes))} |"
    yield from _section("Moving tags", night.tags)
    yield from _section("Left for the next night", night.left)
    yield from _section("Changed files", night.changed)
    if night.kept:
        yield from ("", night.kept)


def _is_of_a_version(one: Broken) -> bool:
    """Whether a newer vLLM broke it, which may be searched for."""
    return not one.environment and (one.step == "port" or one.where.startswith("row vllm "))


def _broken(one: Broken) -> Iterator[str]:
    yield from ("", f"## Broken: {one.where} ({one.step})")
    for problem in one.problems:
        yield from _problem(problem)


def _problem(problem: Problem) -> Iterator[str]:
    where = f"{problem.where}: " if problem.where else ""
    yield from ("", f"{where}{problem.what} [{problem.code}]")
    if problem.fix:
        yield from ("", f"Fix: {problem.fix}")
    if problem.detail:
        yield from ("", *fenced(problem.detail))


def _section(title: str, lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield from ("", f"## {title}", "", *(f"- {line}" for line in lines))


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
