"""Expands axes, zipped rows, includes and excludes into cells. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from imagefactory.errors import Problem
from imagefactory.matrix.cell import (
    AXES,
    Base,
    Cell,
    Flavor,
    Override,
    SourceBuild,
    Toolchain,
)
from imagefactory.matrix.schema import BaseEntry, FlavorEntry, MatrixFile, OverrideEntry
from imagefactory.system.platforms import Platform
from imagefactory.system.yamlfile import Loc, Location, Positions

_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


@dataclass(frozen=True, slots=True)
class Value:
    """A value of an axis, and where it is written."""

    text: str
    location: Location


Point = dict[str, Value]
Removed = tuple[dict[str, str], str, Location]


def points(
    file: MatrixFile, positions: Positions
) -> tuple[list[Point], list[Removed], list[Problem]]:
    """Expand to points; also return the excluded ones, and problems of the expansion."""
    defaults = {
        axis: Value(text, positions.locate(("defaults", axis), "defaults"))
        for axis, text in file.defaults.items()
    }
    found = [{**defaults, **point} for point in _product(file, positions)]
    problems: list[Problem] = []
    known = {frozenset(texts(point).items()) for point in found}
    for number, row in enumerate(file.include):
        own = {
            axis: Value(text, positions.locate(("include", number, axis), "include"))
            for axis, text in row.items()
        }
        point = {**{axis: value for axis, value in defaults.items() if axis not in row}, **own}
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


def _product(file: MatrixFile, positions: Positions) -> Iterator[Point]:
    if not file.axes and not file.zip:
        return
    lists = [
        [
            {axis: Value(v, positions.locate(("axes", axis, i), "axes"))}
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
                    axis: Value(values[i], positions.locate(("zip", number, axis, i), "zip"))
                    for axis, values in group.items()
                }
                for i in range(length)
            ]
        )
    for parts in itertools.product(*lists):
        yield {axis: value for part in parts for axis, value in part.items()}


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


def texts(point: Point) -> dict[str, str]:
    """The values of ``point``, without their locations."""
    return {axis: value.text for axis, value in point.items()}


def cells(
    file: MatrixFile, found: Sequence[Point], positions: Positions
) -> tuple[list[Cell], list[Problem]]:
    """The cells of ``found``, and problems with their names, templates and tags."""
    used = {point["flavor"].text for point in found}
    flavors = {name: _flavor(file, name, positions) for name in sorted(used)}
    made, problems = [], []
    for point in found:
        axes = {axis: point[axis].text for axis in AXES if axis in point}
        filler = _Filler(axes, point.get("vllm", next(iter(point.values()))).location)
        flavor = flavors[axes["flavor"]]
        tags = tuple(
            f"{file.repository}:{filler.fill(t, ('tags', i), positions)}"
            for i, t in enumerate(file.tags)
        )
        loc: Loc = ("flavors", flavor.name, "requirements")
        requirements = tuple(
            filler.fill(r, (*loc, i), positions) for i, r in enumerate(flavor.requirements)
        )
        overrides = tuple(
            _override(entry, filler, ("overrides", number), positions)
            for number, entry in enumerate(file.overrides)
            if matches(entry.when, axes)
        )
        problems += [problem for problem in filler.problems if problem not in problems]
        made.append(
            Cell(
                name=_name(axes),
                axes=axes,
                locations={axis: point[axis].location for axis in axes},
                flavor=flavor,
                requirements=requirements,
                overrides=overrides,
                tags=tuple(dict.fromkeys(tags)),
            )
        )
    return made, problems + list(_tag_problems(made, positions))


class _Filler:
    """Fills ``{axis}`` placeholders with a cell's values, and collects unknown ones as problems."""

    def __init__(self, axes: Mapping[str, str], where: Location) -> None:
        self.axes, self.where = axes, where
        self.problems: list[Problem] = []

    def fill(self, template: str, loc: Loc, positions: Positions) -> str:
        def value(found: re.Match[str]) -> str:
            if found[1] in self.axes:
                return self.axes[found[1]]
            where = str(positions.locate(loc))
            what = f"{template!r}: the cell at {self.where} has no value for {{{found[1]}}}"
            fix = f"use one of {', '.join(sorted(self.axes))}"
            unknown = Problem(code="matrix-unknown-placeholder", where=where, what=what, fix=fix)
            self.problems.append(unknown)
            return "0"

        return _PLACEHOLDER.sub(value, template)


def _name(axes: Mapping[str, str]) -> str:
    parts = [axes["flavor"], f"vllm{axes['vllm']}", f"torch{axes['torch']}", axes["channel"]]
    if "flashinfer" in axes:
        parts.append(f"fi{axes['flashinfer']}")
    cuda = axes.get("cuda", "").replace(".", "")
    if cuda and axes["channel"] != f"cu{cuda}":
        parts.append(f"cuda{cuda}")
    parts += [f"py{axes['python'].replace('.', '')}", axes["platform"].rpartition("/")[2]]
    return re.sub(r"[^a-z0-9_-]+", "-", "-".join(parts).lower())


def _flavor(file: MatrixFile, name: str, positions: Positions) -> Flavor:
    entry: FlavorEntry = file.flavors[name]
    base: BaseEntry = file.bases[entry.base]
    suite = base.suite or base.bootstrap
    return Flavor(
        name=name,
        summary=entry.summary,
        base=Base(
            name=entry.base,
            image=base.image or f"debian:{suite}",
            suite=suite,
            python=base.python,
            glibc=base.glibc,
            packages=tuple(sorted(set(base.packages))),
        ),
        requirements=tuple(entry.requirements),
        patches=tuple(entry.patches),
        env=dict(entry.env),
        serve_args=tuple(entry.serve_args),
        driver=entry.driver,
        toolchain=entry.toolchain,
        location=positions.locate(("flavors", name), "flavors"),
        build=SourceBuild(
            binaries=entry.build.binaries,
            tools=entry.build.tools,
            location=positions.locate(("flavors", name, "build"), "flavors"),
            ref=entry.build.ref,
            extensions=tuple(entry.build.extensions),
            sources=dict(entry.build.sources),
        )
        if entry.build
        else None,
        setting_locations={
            **{
                key: positions.locate(("flavors", name, "env", key), "flavors") for key in entry.env
            },
            **{
                text: positions.locate(("flavors", name, "serve_args", number), "flavors")
                for number, text in enumerate(entry.serve_args)
            },
        },
    )


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
                differing = [a for a in AXES if first.axes.get(a) != cell.axes.get(a)]
                what = f"{first.name} and {cell.name} would share the tag {tag}"
                fix = f"add {' or '.join(f'{{{axis}}}' for axis in differing)} to the template"
                yield Problem(code="matrix-same-tag", where=line, what=what, fix=fix)


def toolchains(file: MatrixFile, positions: Positions) -> tuple[Toolchain, ...]:
    """The toolchains that the file declares."""
    return tuple(
        Toolchain(
            name=name,
            requirements=tuple(sorted(entry.requirements)),
            platforms=tuple(Platform(name) for name in entry.platforms),
            location=positions.locate(("toolchains", name), "toolchains"),
        )
        for name, entry in file.toolchains.items()
    )
