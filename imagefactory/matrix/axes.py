"""The axes of a matrix file: those that imagefactory knows, and those that the user adds. Pure.

Any key under ``axes``, ``zip``, ``include`` or ``defaults`` that is not a known axis is an axis of
the user's own. It must be used: an axis that decides nothing is most often a misspelt one.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence

from imagefactory.errors import Problem
from imagefactory.matrix.cell import AXES
from imagefactory.matrix.schema import MatrixFile
from imagefactory.system.yamlfile import Loc, Positions

#: A reference to an axis in a requirement, a tag or an override.
PLACEHOLDER = re.compile(r"\{([a-z][a-z0-9_]*)\}")
_NAME = re.compile(r"[a-z][a-z0-9_]*")


def names(file: MatrixFile) -> tuple[str, ...]:
    """All axes of ``file``: the known ones, then the user's own in the order of the file."""
    return tuple(dict.fromkeys([*AXES, *(name for _, name in _written(file))]))


def problems(file: MatrixFile, positions: Positions) -> Iterator[Problem]:
    """Report axes that are misspelt, decide nothing, vary twice or have no value."""
    used = _used(file)
    for loc, name in _written(file):
        if name not in AXES and name not in used:
            yield _unused(name, (*loc, name), used, positions)
        elif not _NAME.fullmatch(name):
            what = f"{name!r} cannot be the name of an axis"
            fix = "use lower-case letters, digits and _"
            yield _problem("bad-axis", (*loc, name), what, fix, positions)
    known = names(file)
    for loc, name in _named(file):
        if name not in known:
            what, fix = f"there is no axis {name!r}", f"write one of {', '.join(known)}"
            yield _problem("unknown-axis", (*loc, name), what, fix, positions)
    yield from _varied_twice(file, positions)
    for axis, values in file.axes.items():
        if not values:
            what, fix = f"{axis!r} has no value", "add one, or remove the axis"
            yield _problem("empty-axis", ("axes", axis), what, fix, positions)


def _written(file: MatrixFile) -> Iterator[tuple[Loc, str]]:
    """Where axes get their values: section and axis."""
    sections: list[tuple[Loc, Sequence[str]]] = [
        (("axes",), list(file.axes)),
        (("defaults",), list(file.defaults)),
        *((("zip", i), list(group)) for i, group in enumerate(file.zip)),
        *((("include", i), list(row)) for i, row in enumerate(file.include)),
    ]
    return ((loc, name) for loc, group in sections for name in group)


def _named(file: MatrixFile) -> Iterator[tuple[Loc, str]]:
    """Where conditions name axes: section and axis."""
    for section in ("exclude", "overrides"):
        for number, entry in enumerate(getattr(file, section)):
            yield from (((section, number, "when"), name) for name in entry.when)
    for tag, moving in file.moving_tags.items():
        yield from ((("moving_tags", tag, "when"), name) for name in moving.when)


def _used(file: MatrixFile) -> set[str]:
    """The axes that decide what is in an image or how it is tagged."""
    texts = [
        *file.tags,
        *(text for flavor in file.flavors.values() for text in flavor.requirements),
        *(text for flavor in file.flavors.values() for text in flavor.indexes.values()),
        *(entry.requirement or entry.drop or "" for entry in file.overrides),
    ]
    found = {name for text in texts for name in PLACEHOLDER.findall(text)}
    return found | {name for entry in file.overrides for name in entry.when}


def _unused(name: str, loc: Loc, used: set[str], positions: Positions) -> Problem:
    near = difflib.get_close_matches(name, [*AXES, *sorted(used)], n=1)
    if near:
        what, fix = f"there is no axis {name!r}", f"write {near[0]!r}"
        return _problem("unknown-axis", loc, what, fix, positions)
    what = f"axis {name!r} decides nothing: no requirement, tag or override uses it"
    fix = (
        f"write {{{name}}} in a requirement or tag, name it in the `when` of an override, "
        "or remove it"
    )
    return _problem("unused-axis", loc, what, fix, positions)


def _varied_twice(file: MatrixFile, positions: Positions) -> Iterator[Problem]:
    varied: dict[str, Loc] = {}
    for loc, name in _written(file):
        if loc[0] not in ("axes", "zip"):
            continue
        if name in varied:
            what = f"{name!r} is already varied in {varied[name][0]!r}"
            yield _problem("axis-twice", (*loc, name), what, "keep only one of them", positions)
        varied[name] = loc


def _problem(code: str, loc: Loc, what: str, fix: str, positions: Positions) -> Problem:
    return Problem(code=f"matrix-{code}", where=str(positions.locate(loc)), what=what, fix=fix)
