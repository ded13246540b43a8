"""Expands axes, zipped rows, includes and excludes into cells. Pure."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from packaging.utils import canonicalize_name

from imagefactory.errors import InputError, Problem, fail
from imagefactory.matrix import axes as all_axes
from imagefactory.matrix import declarations
from imagefactory.matrix.axes import PLACEHOLDER
from imagefactory.matrix.cell import (
    AXES,
    Cell,
    DriverOverride,
    Flavor,
    NamedIndex,
    Override,
    VllmRef,
)
from imagefactory.matrix.schema import MatrixFile, OverrideEntry, RefEntry
from imagefactory.system.yamlfile import Loc, Location, Positions

#: More than anybody builds; a product of two long lists is a mistake that would take hours.
MOST_CELLS = 10_000
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


@dataclass(frozen=True, slots=True)
class Value:
    """A value of an axis, and where it is written; for a git ref, ``text`` is what it is called."""

    text: str
    location: Location
    ref: VllmRef | None = None


Point = dict[str, Value]
Removed = tuple[dict[str, str], str, Location]


def points(
    file: MatrixFile, positions: Positions
) -> tuple[list[Point], list[Removed], list[Problem]]:
    """Expand to points; also return the excluded ones, and problems of the expansion.

    Raises InputError for more cells than can be meant.
    """
    count = math.prod(map(len, _groups(file, positions))) + len(file.include)
    if count > MOST_CELLS:
        what = f"the matrix has {count} cells, more than {MOST_CELLS}"
        where = str(positions.locate(("axes",) if file.axes else ("zip",)))
        fix = "write fewer values, or vary them together in `zip`"
        raise fail(InputError, "matrix-too-large", what, where=where, fix=fix)
    defaults = {
        axis: Value(text, positions.locate(("defaults", axis), "defaults"))
        for axis, text in file.defaults.items()
    }
    found = [{**defaults, **point} for point in _product(file, positions)]
    problems: list[Problem] = []
    known = {frozenset(texts(point).items()) for point in found}
    single = [group[0] for group in _groups(file, positions) if len(group) == 1]
    for number, row in enumerate(file.include):
        own = {
            axis: _value(written, positions.locate(("include", number, axis), "include"))
            for axis, written in row.items()
        }
        point = _completed({**defaults, **own}, own, single)
        values = frozenset(texts(point).items())
        if values in known:
            where = str(positions.locate(("include", number)))
            what, fix = "the matrix already has this cell", "remove it"
            problems.append(Problem(code="matrix-same-cell", where=where, what=what, fix=fix))
        known.add(values)
        found.append(point)
    kept, removed, unused = _exclude(file, found, positions)
    problems += unused
    if not kept and not problems:
        what = "the matrix has no cells" + (" left after `exclude`" if removed else "")
        fix = "add at least one value to `axes`, `zip` or `include`"
        where = f"{positions.file}:1"
        problems.append(Problem(code="matrix-empty", where=where, what=what, fix=fix))
    return kept, removed, problems


def _value(written: str | RefEntry, location: Location) -> Value:
    if isinstance(written, str):
        return Value(written, location)
    ref = VllmRef(
        repository=written.repository.rstrip("/"),
        ref=written.ref,
        prs=tuple(written.prs),
        base=written.base,
        tools=written.tools,
        words=written.words,
        location=location,
    )
    return Value(written.words, location, ref)


def _completed(point: Point, own: Point, single: Sequence[Point]) -> Point:
    """``point`` with the axes that have a single value in the matrix.

    Axes that are zipped together are taken together: all, if the row sets none of them.
    """
    inherited = [group for group in single if own.keys().isdisjoint(group)]
    whole = {**{axis: value for group in inherited for axis, value in group.items()}, **point}
    if "channel" in whole and whole["channel"].text == "cpu":  # which has neither of these
        idle = {"cuda", "flashinfer"} - own.keys()
        return {axis: value for axis, value in whole.items() if axis not in idle}
    return whole


def _product(file: MatrixFile, positions: Positions) -> Iterator[Point]:
    if not file.axes and not file.zip:
        return
    for parts in itertools.product(*_groups(file, positions)):
        yield {axis: value for part in parts for axis, value in part.items()}


def _groups(file: MatrixFile, positions: Positions) -> list[list[Point]]:
    """The rows of every axis and of every group of zipped axes."""
    lists = [
        [
            {axis: _value(v, positions.locate(("axes", axis, i), "axes"))}
            for i, v in enumerate(values)
        ]
        for axis, values in file.axes.items()
    ]
    for number, group in enumerate(file.zip):
        # the rules report columns of unequal length
        length = min(map(len, group.values()), default=0)
        lists.append(
            [
                {
                    axis: _value(values[i], positions.locate(("zip", number, axis, i), "zip"))
                    for axis, values in group.items()
                }
                for i in range(length)
            ]
        )
    return lists


def _exclude(
    file: MatrixFile, found: Sequence[Point], positions: Positions
) -> tuple[list[Point], list[Removed], list[Problem]]:
    kept, removed, unused = list(found), [], []
    for number, entry in enumerate(file.exclude):
        matching = [point for point in kept if matches(entry.when, texts(point))]
        location = positions.locate(("exclude", number), "exclude")
        if not matching:
            what, fix = "this exclude matches no cell", "remove it, or fix its `when`"
            where = str(location)
            unused.append(Problem(code="matrix-dead-exclude", where=where, what=what, fix=fix))
        kept = [point for point in kept if not matches(entry.when, texts(point))]
        removed += [(texts(point), entry.reason, location) for point in matching]
    return kept, removed, unused


def matches(when: Mapping[str, str | list[str]], axes: Mapping[str, str]) -> bool:
    """Whether ``axes`` has, for every axis of ``when``, the given value or one of several."""
    return all(
        axes.get(axis) in ([values] if isinstance(values, str) else values)
        for axis, values in when.items()
    )


def applies(when: Mapping[str, str | list[str]], point: Point) -> bool:
    """Whether an override is for ``point``: a git ref also has those of its base.

    What is resolved for the ref is what the base's wheel needs.
    """
    ref = point["vllm"].ref if "vllm" in point else None
    named = texts(point)
    return matches(when, named) or (ref is not None and matches(when, {**named, "vllm": ref.base}))


def texts(point: Point) -> dict[str, str]:
    """The values of ``point``, without their locations."""
    return {axis: value.text for axis, value in point.items()}


def cells(
    file: MatrixFile, found: Sequence[Point], positions: Positions
) -> tuple[list[Cell], list[Problem]]:
    """The cells of ``found``, and problems with their names, templates and tags."""
    used = {point["flavor"].text for point in found}
    flavors = {name: declarations.flavor(file, name, positions) for name in sorted(used)}
    made, problems, order = [], [], all_axes.names(file)
    for point in found:
        named = {axis: point[axis].text for axis in order if axis in point}
        ref = point["vllm"].ref
        axes = {**named, "vllm": ref.base} if ref else named
        filler = _Filler(axes, point["vllm"].location)
        tagger = _Filler(named, point["vllm"].location)
        flavor = flavors[axes["flavor"]]
        tags = tuple(
            f"{file.repository}:{tagger.fill(t, ('tags', i), positions, plus='-')}"
            for i, t in enumerate(file.tags)
        )
        loc: Loc = ("flavors", flavor.name, "requirements")
        requirements = tuple(
            filler.fill(r, (*loc, i), positions) for i, r in enumerate(flavor.requirements)
        )
        overrides = tuple(
            _override(entry, filler, ("overrides", number), positions)
            for number, entry in enumerate(file.overrides)
            if entry.driver is None and applies(entry.when, point)
        )
        drivers = tuple(
            DriverOverride(
                driver=entry.driver,
                reason=entry.reason,
                location=positions.locate(("overrides", number), "overrides"),
            )
            for number, entry in enumerate(file.overrides)
            if entry.driver is not None and applies(entry.when, point)
        )
        indexes, more = _indexes(file, flavor, filler, positions)
        problems += [*more, *tagger.problems, *filler.problems]
        made.append(
            Cell(
                name=_name(named),
                axes=axes,
                locations={axis: point[axis].location for axis in axes},
                flavor=flavor,
                requirements=requirements,
                overrides=overrides,
                tags=tuple(dict.fromkeys(tags)),
                driver_overrides=drivers,
                indexes=indexes,
                ref=ref,
            )
        )
    return made, problems + list(_tag_problems(made, positions))


def _indexes(
    file: MatrixFile, flavor: Flavor, filler: _Filler, positions: Positions
) -> tuple[tuple[NamedIndex, ...], list[Problem]]:
    """The packages that come from an index of the file, and problems with the indexes' names."""
    found, problems = [], []
    for package, template in flavor.indexes.items():
        name = filler.fill(template, ("flavors", flavor.name, "indexes", package), positions)
        if name in file.indexes:
            url = file.indexes[name].url.rstrip("/")
            found.append(NamedIndex(package=canonicalize_name(package), name=name, url=url))
            continue
        where = str(flavor.where("indexes", package))
        what = f"there is no index {name!r}, which {package} of flavor {flavor.name} comes from"
        known = ", ".join(file.indexes)
        fix = f"write one of {known}" if known else "declare it under `indexes`"
        problems.append(Problem(code="matrix-unknown-index", where=where, what=what, fix=fix))
    return tuple(sorted(found, key=lambda one: one.package)), problems


class _Filler:
    """Fills ``{axis}`` placeholders with a cell's values, and collects unknown ones as problems."""

    def __init__(self, axes: Mapping[str, str], where: Location) -> None:
        self.axes, self.where = axes, where
        self.problems: list[Problem] = []

    def fill(self, template: str, loc: Loc, positions: Positions, *, plus: str = "+") -> str:
        """``template`` with the values; ``plus`` is written for the + of a local version."""

        def value(found: re.Match[str]) -> str:
            if found[1] in self.axes:
                return self.axes[found[1]].replace("+", plus)
            where = str(positions.locate(loc))
            what = f"{template!r}: the cell at {self.where} has no value for {{{found[1]}}}"
            fix = f"use one of {', '.join(sorted(self.axes))}"
            unknown = Problem(code="matrix-unknown-placeholder", where=where, what=what, fix=fix)
            self.problems.append(unknown)
            return "0"

        return PLACEHOLDER.sub(value, template)


def _name(axes: Mapping[str, str]) -> str:
    of_vllm = "vllm" if axes["vllm"][:1].isdigit() else "vllm-"  # else the words of a git ref
    parts = [axes["flavor"], f"{of_vllm}{axes['vllm']}", f"torch{axes['torch']}", axes["channel"]]
    if "flashinfer" in axes:
        parts.append(f"fi{axes['flashinfer']}")
    cuda = axes.get("cuda", "").replace(".", "")
    if cuda and axes["channel"] != f"cu{cuda}":
        parts.append(f"cuda{cuda}")
    parts += [f"{axis}{value}" for axis, value in axes.items() if axis not in AXES]
    parts += [f"py{axes['python'].replace('.', '')}", axes["platform"].rpartition("/")[2]]
    return re.sub(r"[^a-z0-9_-]+", "-", "-".join(parts).lower())


def _override(entry: OverrideEntry, filler: _Filler, loc: Loc, positions: Positions) -> Override:
    text = filler.fill(entry.requirement or entry.drop or "", loc, positions)
    location = positions.locate(loc, "overrides")
    return Override(
        requirement=text, drop=entry.drop is not None, reason=entry.reason, location=location
    )


def _tag_problems(made: Sequence[Cell], positions: Positions) -> Iterator[Problem]:
    names: dict[str, Cell] = {}
    tags: dict[str, Cell] = {}
    line = str(positions.locate(("tags",)))
    for cell in made:
        other = names.setdefault(cell.name, cell)
        if other is not cell:
            where = str(cell.locations["vllm"])
            what = f"two cells are named {cell.name} ({other.locations['vllm']} and {where})"
            fix = "change an axis of one of them, or remove one"
            yield Problem(code="matrix-same-cell", where=where, what=what, fix=fix)
            continue
        for tag in cell.tags:
            if not _TAG.fullmatch(tag.rpartition(":")[2]):
                what = f"{tag} is not a valid image reference"
                fix = "use up to 128 letters, digits and . _ - after the colon"
                yield Problem(code="matrix-bad-tag", where=line, what=what, fix=fix)
            first = tags.setdefault(tag, cell)
            if first is not cell:
                both = dict.fromkeys([*first.axes, *cell.axes])
                differing = [a for a in both if first.named.get(a) != cell.named.get(a)]
                what = f"{first.name} and {cell.name} would share the tag {tag}"
                fix = f"add {' or '.join(f'{{{axis}}}' for axis in differing)} to the template"
                yield Problem(code="matrix-same-tag", where=line, what=what, fix=fix)
