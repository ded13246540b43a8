"""``--select``: which cells a command is about. Pure.

The grammar, loosest binding first::

    selection    = alternative { "or" alternative }
    alternative  = factor { [ "and" ] factor }
    factor       = { "not" } term
    term         = NAME | AXIS "=" VALUE { "," VALUE }

A space means ``and``. NAME and VALUE are globs; a NAME is compared with the cell's name, a VALUE
with the cell's value of that axis, which is empty where the cell has none. There are no
parentheses: several selections (``--select`` given more than once) are joined by ``or`` as well.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import translate
from functools import lru_cache

from imagefactory.errors import InputError, Problem
from imagefactory.matrix.cell import AXES, Cell

GRAMMAR = (
    "write names or globs (gb10-*) and axis=value[,value] terms (vllm=0.3*); a space means `and`, "
    "which binds tighter than `or`; `not` before a term excludes what it matches"
)
#: Cells that an error lists at most.
LISTED = 30
#: What other query languages have, and this one does not.
_FOREIGN = re.compile(r"[()&|]|==|!=|^!")


@dataclass(frozen=True, slots=True)
class _Term:
    text: str
    negated: bool

    @property
    def axis(self) -> str | None:
        """The axis of an ``axis=value`` term; None for a name."""
        axis, equals, _ = self.text.partition("=")
        return axis if equals else None

    def holds(self, cell: Cell) -> bool:
        """Whether it matches ``cell``, negation included."""
        return self._matches(cell) != self.negated

    def _matches(self, cell: Cell) -> bool:
        axis, equals, values = self.text.partition("=")
        if not equals:
            return _glob(self.text).match(cell.name) is not None
        has = {cell.axes.get(axis, ""), cell.named.get(axis, "")}
        return any(_glob(text).match(one) for one in has for text in values.split(","))


@lru_cache(maxsize=65536)
def _glob(text: str) -> re.Pattern[str]:
    """The pattern of a glob.

    For each ``[``, `translate` looks for its ``]`` up to the end: those that have none are escaped
    first, or thousands of them would take seconds.
    """
    at = text.find("[")
    while at >= 0:
        first = at + 2 if text.startswith("!", at + 1) else at + 1
        # a bracket in the first place is one of the characters, and closes nothing
        end = text.find("]", first + 1)
        if end < 0:
            text = text[:at] + text[at:].replace("[", "[[]")
            break
        at = text.find("[", end)
    return re.compile(translate(text))


#: Alternatives, each with the terms that must all hold.
_Parsed = list[list[_Term]]


def select(cells: Sequence[Cell], expressions: Sequence[str]) -> tuple[Cell, ...]:
    """The cells that any of ``expressions`` matches, in their order; all of them if there is none.

    Raises InputError for a wrong expression, an unknown axis, or if nothing is selected.
    """
    if not expressions:
        return tuple(cells)
    parsed = [_parse(expression) for expression in expressions]
    terms = [term for one in parsed for alternative in one for term in alternative]
    axes = tuple(dict.fromkeys([*AXES, *(axis for cell in cells for axis in cell.axes)]))
    problems = list(dict.fromkeys(problem for term in terms for problem in _mistakes(term, axes)))
    if problems:
        raise InputError(problems)
    found = tuple(cell for cell in cells if any(_selects(one, cell) for one in parsed))
    if not found:
        raise InputError(_nothing(cells, expressions, terms))
    return found


def _selects(parsed: _Parsed, cell: Cell) -> bool:
    return any(
        bool(alternative) and all(term.holds(cell) for term in alternative)
        for alternative in parsed
    )


def _parse(expression: str) -> _Parsed:
    """The terms of ``expression``. Raises InputError if an operator lacks one of its operands."""
    alternatives: _Parsed = [[]]
    negated, waiting = False, ""
    for word in expression.split():
        operator = word.lower()
        if operator == "not":
            negated, waiting = not negated, word
        elif operator in {"and", "or"}:
            if waiting or not alternatives[-1]:
                raise _wrong(expression, f"nothing to join before {word!r}")
            waiting = word
            if operator == "or":
                alternatives.append([])
        else:
            alternatives[-1].append(_Term(word, negated))
            negated, waiting = False, ""
    if waiting:
        raise _wrong(expression, f"nothing follows {waiting!r}")
    return alternatives


def _wrong(expression: str, reason: str) -> InputError:
    what = f"cannot read the selection {expression!r}: {reason}"
    return InputError(Problem(code="select-syntax", what=what, fix=GRAMMAR))


def _mistakes(term: _Term, axes: Sequence[str]) -> Iterator[Problem]:
    foreign = _FOREIGN.search(term.text)
    values = term.text.partition("=")[2].split(",")
    if foreign:
        raise _wrong(term.text, f"{foreign.group()!r} is not part of the grammar")
    if len(values) > 1 and "" in values:
        raise _wrong(term.text, "a value between commas is empty (no spaces around a comma)")
    if term.axis is not None and term.axis not in axes:
        near = difflib.get_close_matches(term.axis, axes, n=1)
        hint = f"did you mean {near[0]}={term.text.partition('=')[2]}? " if near else ""
        yield Problem(
            code="select-axis",
            what=f"there is no axis {term.axis!r}",
            fix=f"{hint}The axes are {', '.join(axes)}",
        )


def _nothing(cells: Sequence[Cell], expressions: Sequence[str], terms: Sequence[_Term]) -> Problem:
    names = [cell.name for cell in cells]
    more = len(names) - LISTED
    listed = [*names[:LISTED], *([f"and {more} more"] if more > 0 else [])]
    return Problem(
        code="select-nothing",
        what=f"{' or '.join(repr(one) for one in expressions)} matches no cell",
        fix=next((hint for term in terms for hint in _hints(term, cells)), GRAMMAR),
        detail="\n".join(["the cells are:", *(f"  {name}" for name in listed)]),
    )


def _hints(term: _Term, cells: Sequence[Cell]) -> Iterator[str]:
    """What to write instead of a term that matches no cell by itself."""
    if term.negated or any(term.holds(cell) for cell in cells):
        return
    if term.axis is None:
        values = {value: axis for cell in cells for axis, value in cell.named.items()}
        names = [cell.name for cell in cells]
        near = difflib.get_close_matches(term.text, names, n=1, cutoff=0.8)
        if term.text in values:
            near = [f"{values[term.text]}={term.text}"]
        yield from (f"did you mean {name}?" for name in near)
        return
    known = dict.fromkeys(value for cell in cells if (value := cell.named.get(term.axis)))
    yield f"{term.axis} is one of {', '.join(known)}" if known else f"no cell has {term.axis}"
