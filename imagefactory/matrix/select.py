"""``--select``: which cells a command is about. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from imagefactory.errors import InputError, Problem
from imagefactory.matrix.cell import AXES, Cell


def select(cells: Sequence[Cell], expressions: Sequence[str]) -> tuple[Cell, ...]:
    """The cells that any of ``expressions`` names; all of them if there is none.

    An expression is one or more terms with spaces between them, all of which must hold: a glob on
    the cell's name, or ``axis=value`` with globs separated by commas. Raises InputError for an
    unknown axis, or if nothing is selected.
    """
    if not expressions:
        return tuple(cells)
    problems = [problem for expression in expressions for problem in _unknown(expression)]
    if problems:
        raise InputError(problems)
    found = tuple(
        cell for cell in cells if any(_holds(cell, expression) for expression in expressions)
    )
    if not found:
        names = ", ".join(cell.name for cell in cells)
        what = f"--select {' '.join(repr(e) for e in expressions)} names no cell"
        raise InputError(Problem(code="select-nothing", what=what, fix=f"there are: {names}"))
    return found


def _unknown(expression: str) -> list[Problem]:
    axes = [term.partition("=")[0] for term in expression.split() if "=" in term]
    fix = f"write one of {', '.join(AXES)}"
    return [
        Problem(code="select-axis", what=f"there is no axis {a!r}", fix=fix)
        for a in axes
        if a not in AXES
    ]


def _holds(cell: Cell, expression: str) -> bool:
    return bool(expression.split()) and all(_term(cell, term) for term in expression.split())


def _term(cell: Cell, term: str) -> bool:
    axis, equals, values = term.partition("=")
    if not equals:
        return fnmatchcase(cell.name, term)
    return any(fnmatchcase(cell.axes.get(axis, ""), value) for value in values.split(","))
