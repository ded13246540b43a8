"""From axes, zipped rows, includes and excludes to cells. Pure."""

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
    """A value of an axis and where it was written."""

    text: str
    location: Location


Point = dict[str, Value]
Taken = tuple[dict[str, str], str, Location]


def points(
    file: MatrixFile, positions: Positions
) -> tuple[list[Point], list[Taken], list[Problem]]:
    """All points, those that were taken out, and what is wrong with the expansion."""
    defaults = {
        a: Value(v, positions.locate(("defaults", a), "defaults")) for a, v in file.defaults.items()
    }
    found = [{**defaults, **point} for point in _product(file, positions)]
    problems: list[Problem] = []
    known = {frozenset(texts(point).items()) for point in found}
    for number, row in enumerate(file.include):
        point = {
            a: Value(v, positions.locate(("include", number, a), "include")) for a, v in row.items()
        }
        point = {**{a: v for a, v in defaults.items() if a not in row}, **point}
        own = frozenset(texts(point).items())
        if own in known:
            where = str(positions.locate(("include", number)))
            what = "this include is a cell that the matrix has already"
            problems.append(
                Problem(code="matrix-same-cell", where=where, what=what, fix="remove it")
            )
        known.add(own)
        found.append(point)
    kept, taken, dead = _exclude(file, found, positions)
    problems += dead
    if not kept and not problems:
        what = "the matrix has no cell" + (" left after `exclude`" if taken else "")
        fix = "give `axes`, `zip` or `include` at least one value"
        problems.append(
            Problem(code="matrix-empty", where=f"{positions.file}:1", what=what, fix=fix)
        )
    return kept, taken, problems


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
        length = min(
            map(len, group.values()), default=0
        )  # rows of unequal length are told by the rules
        lists.append(
            [
                {
                    a: Value(values[i], positions.locate(("zip", number, a, i), "zip"))
                    for a, values in group.items()
                }
                for i in range(length)
            ]
        )
    for parts in itertools.product(*lists):
        yield {axis: value for part in parts for axis, value in part.items()}


def _exclude(
    file: MatrixFile, found: Sequence[Point], positions: Positions
) -> tuple[list[Point], list[Taken], list[Problem]]:
    kept, taken, dead = list(found), [], []
    for number, entry in enumerate(file.exclude):
        hit = [point for point in kept if matches(entry.when, texts(point))]
        location = positions.locate(("exclude", number), "exclude")
        if not hit:
            what = "this exclude matches no cell"
            dead.append(
                Problem(
                    code="matrix-dead-exclude",
                    where=str(location),
                    what=what,
                    fix="remove it, or mend `when`",
                )
            )
        kept = [point for point in kept if not matches(entry.when, texts(point))]
        taken += [(texts(point), entry.reason, location) for point in hit]
    return kept, taken, dead


def matches(when: Mapping[str, str | list[str]], axes: Mapping[str, str]) -> bool:
    """Whether ``axes`` has, for every axis of ``when``.

    The value or one of the values named there.
    """
    return all(
        axes.get(axis) in ([values] if isinstance(values, str) else values)
        for axis, values in when.items()
    )


def texts(point: Point) -> dict[str, str]:
    """The point without where its values were written."""
    return {axis: value.text for axis, value in point.items()}


def cells(
    file: MatrixFile, found: Sequence[Point], positions: Positions
) -> tuple[list[Cell], list[Problem]]:
    """The cells of ``found``, and what is wrong with their names, templates and tags."""
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
    """Fills ``{axis}`` placeholders with a cell's values.

    And collects the ones that mean nothing.
    """

    def __init__(self, axes: Mapping[str, str], where: Location) -> None:
        self.axes, self.where = axes, where
        self.problems: list[Problem] = []

    def fill(self, template: str, loc: Loc, positions: Positions) -> str:
        def value(found: re.Match[str]) -> str:
            if found[1] not in self.axes:
                what = f"{template!r}: the cell of {self.where} has no value for {{{found[1]}}}"
                fix = f"use one of {', '.join(sorted(self.axes))}"
                where = str(positions.locate(loc))
                self.problems.append(
                    Problem(code="matrix-unknown-placeholder", where=where, what=what, fix=fix)
                )
                return "0"
            return self.axes[found[1]]

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
    return Flavor(
        name=name,
        summary=entry.summary,
        base=Base(
            name=entry.base,
            image=base.image,
            bootstrap=base.bootstrap,
            python=base.python,
            glibc=base.glibc,
            packages=tuple(sorted(base.packages)),
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
            what = (
                f"two cells are named {cell.name} ({other.locations['vllm']} and "
                f"{cell.locations['vllm']})"
            )
            fix = "let them differ in an axis, or remove one"
            yield Problem(
                code="matrix-same-cell", where=str(cell.locations["vllm"]), what=what, fix=fix
            )
            continue
        for tag in cell.tags:
            if not _TAG.fullmatch(tag.rpartition(":")[2]):
                fix = "use letters, digits, . _ - (128 at most)"
                yield Problem(
                    code="matrix-bad-tag", where=line, what=f"{tag} is no image reference", fix=fix
                )
            first = tags.setdefault(tag, cell)
            if first is not cell:
                differ = [a for a in AXES if first.axes.get(a) != cell.axes.get(a)]
                what = f"{first.name} and {cell.name} would both be {tag}"
                fix = f"add {' or '.join('{' + a + '}' for a in differ)} to the template"
                yield Problem(code="matrix-same-tag", where=line, what=what, fix=fix)


def toolchains(file: MatrixFile, positions: Positions) -> tuple[Toolchain, ...]:
    """The compiler sets that the file declares."""
    return tuple(
        Toolchain(
            name=name,
            requirements=tuple(sorted(entry.requirements)),
            platforms=tuple(Platform(name) for name in entry.platforms),
            location=positions.locate(("toolchains", name), "toolchains"),
        )
        for name, entry in file.toolchains.items()
    )
