"""Rules for git refs as values of the axis ``vllm``. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from imagefactory.errors import Problem
from imagefactory.matrix.cell import Cell
from imagefactory.matrix.schema import REPOSITORY_URL, MatrixFile, RefEntry
from imagefactory.system.yamlfile import Loc, Positions

#: The only axis whose values may be refs, and the project whose wheel has their binaries.
AXIS = "vllm"


def of_file(file: MatrixFile, positions: Positions) -> Iterator[Problem]:
    """Report refs of other axes, toolchains that do not exist, and PRs that are listed twice."""
    for loc, entry in _entries(file):
        if AXIS not in loc:
            axis = next(str(part) for part in reversed(loc) if isinstance(part, str))
            what, fix = f"{axis} cannot be a git ref", f"only {AXIS} can: write a text"
            yield _problem("ref-axis", loc, what, fix, positions)
        if not re.fullmatch(REPOSITORY_URL, entry.repository):
            what = f"{entry.repository!r} is not the URL of a git repository"
            fix = f"write {_url(entry.repository)}"
            yield _problem("ref-url", (*loc, "repository"), what, fix, positions)
        if entry.tools is not None and entry.tools not in file.toolchains:
            known = ", ".join(file.toolchains)
            what = f"there is no toolchain {entry.tools!r}"
            fix = f"write one of {known}" if known else "declare it under `toolchains`"
            yield _problem("unknown-toolchain", (*loc, "tools"), what, fix, positions)
        for number in sorted({pr for pr in entry.prs if entry.prs.count(pr) > 1}):
            what, fix = f"pull request {number} is listed twice", "remove one of them"
            yield _problem("same-pr", (*loc, "prs"), what, fix, positions)


def of_cells(cells: Sequence[Cell]) -> Iterator[Problem]:
    """Report refs whose flavor has no build tools, or no wheel with the binaries of the base."""
    for cell in cells:
        if cell.ref is None:
            continue
        where = str(cell.ref.location)
        if cell.build is None:
            what = f"{cell.name}: the wheel of a git ref is built, and no build tools are named"
            fix = "add `tools: …` with a key of `toolchains` (docs/refs.md)"
            yield Problem(code="matrix-ref-tools", where=where, what=what, fix=fix)
        if not any(_is_vllm(text) for text in cell.requirements):
            what = f"{cell.name}: flavor {cell.flavor.name} requires no wheel of vllm"
            fix = "use a flavor with the requirement vllm=={vllm}"
            yield Problem(code="matrix-ref-flavor", where=where, what=what, fix=fix)


def _url(text: str) -> str:
    """The URL that ``text`` may stand for, or what a URL is."""
    there = re.fullmatch(r"([\w.-]+@[\w.-]+):([\w.~][\w./~-]*)", text)
    if there:
        return f"ssh://{there[1]}/{there[2]}"
    return f"file://{text}" if text.startswith("/") else "one with https://, ssh:// or file:///"


def _is_vllm(text: str) -> bool:
    try:
        return canonicalize_name(Requirement(text).name) == AXIS
    except InvalidRequirement:  # reported where it is written
        return True


def _entries(file: MatrixFile) -> Iterator[tuple[Loc, RefEntry]]:
    """The refs of ``file``, each with its position."""
    found: list[tuple[Loc, object]] = []
    for axis, values in file.axes.items():
        found += [(("axes", axis, i), value) for i, value in enumerate(values)]
    for number, group in enumerate(file.zip):
        for axis, values in group.items():
            found += [(("zip", number, axis, i), value) for i, value in enumerate(values)]
    for number, row in enumerate(file.include):
        found += [(("include", number, axis), value) for axis, value in row.items()]
    return ((loc, value) for loc, value in found if isinstance(value, RefEntry))


def _problem(code: str, loc: Loc, what: str, fix: str, positions: Positions) -> Problem:
    return Problem(code=f"matrix-{code}", where=str(positions.locate(loc)), what=what, fix=fix)
