"""What must hold in a matrix beyond its shape. Each rule yields every problem that it sees."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from packaging.requirements import InvalidRequirement, Requirement

from imagefactory.errors import Problem
from imagefactory.matrix import origins
from imagefactory.matrix.cell import AXES
from imagefactory.matrix.expand import Point, matches, texts
from imagefactory.matrix.schema import FlavorEntry, MatrixFile
from imagefactory.matrix.versions import is_version
from imagefactory.system.yamlfile import Loc, Positions

NEEDED = ("flavor", "platform", "python", "channel", "torch", "vllm")
#: The address of a wheel, with the hash of what is meant.
_ADDRESS = re.compile(r"[^#]+\.whl#sha256=[0-9a-f]{64}")
#: Values of the axes that are no versions, to try a requirement's placeholders with.
_SAMPLES = {"flavor": "gb10", "platform": "linux/arm64", "channel": "cu130"}


def of_file(file: MatrixFile, positions: Positions) -> Iterator[Problem]:
    """Rules about names: axes, bases, flavors, requirements; and about zipped rows."""
    yield from _axis_names(file, positions)
    yield from _zip_rows(file, positions)
    yield from _flavors(file, positions)
    for number, entry in enumerate(file.overrides):
        loc: Loc = ("overrides", number)
        if (entry.requirement is None) == (entry.drop is None):
            what, fix = (
                "an override either replaces or drops",
                "give exactly one of `requirement` and `drop`",
            )
            yield _problem("bad-override", loc, what, fix, positions)
        else:
            yield from _requirement(entry.requirement or entry.drop or "", loc, positions)
            if entry.drop and re.search(r"[^A-Za-z0-9._{}-]", entry.drop):
                what, fix = (
                    f"{entry.drop!r} is more than a name",
                    "`drop` takes the package's name alone",
                )
                yield _problem("bad-override", loc, what, fix, positions)


def _flavors(file: MatrixFile, positions: Positions) -> Iterator[Problem]:
    for name, flavor in file.flavors.items():
        if flavor.base not in file.bases:
            fix = f"write one of {', '.join(file.bases)}"
            yield _problem(
                "unknown-base",
                ("flavors", name, "base"),
                f"there is no base {flavor.base!r}",
                fix,
                positions,
            )
        tools = {
            ("toolchain",): flavor.toolchain,
            ("build", "tools"): flavor.build.tools if flavor.build else None,
        }
        for loc, wanted in tools.items():
            if wanted is not None and wanted not in file.toolchains:
                known = ", ".join(file.toolchains)
                fix = f"write one of {known}" if known else "declare it under `toolchains`"
                what = f"there is no toolchain {wanted!r}"
                yield _problem("unknown-toolchain", ("flavors", name, *loc), what, fix, positions)
        yield from _build(name, flavor, positions)
        if flavor.driver is not None and not is_version(flavor.driver):
            what, fix = (
                f"{flavor.driver!r} is no driver version",
                'write what nvidia-smi says, such as "580.95"',
            )
            yield _problem("bad-driver", ("flavors", name, "driver"), what, fix, positions)
        for number, patch in enumerate(flavor.patches):
            if not re.fullmatch(r"[a-z0-9-]+/[a-z0-9.-]+", patch):
                fix = "write project/name, as the folder below patches/"
                yield _problem(
                    "bad-patch",
                    ("flavors", name, "patches", number),
                    f"{patch!r} names no patch",
                    fix,
                    positions,
                )
        for number, text in enumerate(flavor.requirements):
            yield from _requirement(text, ("flavors", name, "requirements", number), positions)


def _build(name: str, flavor: FlavorEntry, positions: Positions) -> Iterator[Problem]:
    build = flavor.build
    if build is None:
        return
    loc: Loc = ("flavors", name, "build")
    texts = {(*loc, "sources", key): text for key, text in build.sources.items()}
    for place, text in {**texts, **({(*loc, "ref"): build.ref} if build.ref else {})}.items():
        found = origins.parse(text)
        if found is None or (place[-1] == "ref" and found.kind is not origins.Kind.GIT):
            fix = "write git+https://host/repository@ref" + (
                ""
                if place[-1] == "ref"
                else ", https://….tar.gz#sha256=…, wheel:NAME/path, or a folder (./…)"
            )
            yield _problem(
                "bad-origin", place, f"{text!r} does not say where sources are", fix, positions
            )
    if build.binaries == "official":
        for key in ("extensions", "sources"):
            if getattr(build, key):
                what, fix = (
                    f"`{key}` means nothing where nothing is compiled",
                    "write `binaries: compiled`",
                )
                yield _problem("build-idle", (*loc, key), what, fix, positions)
        return
    asked = {
        "`extensions`": (
            bool(build.extensions),
            "name the CMake targets to compile, such as _C_stable_libtorch",
        ),
        "the flavor's `toolchain`": (
            flavor.toolchain is not None,
            "name the compilers, such as cuda13.0",
        ),
        "TORCH_CUDA_ARCH_LIST": (
            "TORCH_CUDA_ARCH_LIST" in flavor.env,
            'say in `env` for which GPUs, such as "12.1a"',
        ),
    }
    for what, (there, fix) in asked.items():
        if not there:
            yield _problem("build-lacks", loc, f"`binaries: compiled` needs {what}", fix, positions)


def _axis_names(file: MatrixFile, positions: Positions) -> Iterator[Problem]:
    places: list[tuple[Loc, Sequence[str]]] = [
        (("axes",), list(file.axes)),
        (("defaults",), list(file.defaults)),
    ]
    places += [(("zip", i), list(group)) for i, group in enumerate(file.zip)]
    places += [(("include", i), list(row)) for i, row in enumerate(file.include)]
    places += [(("exclude", i, "when"), list(entry.when)) for i, entry in enumerate(file.exclude)]
    places += [
        (("overrides", i, "when"), list(entry.when)) for i, entry in enumerate(file.overrides)
    ]
    taken: dict[str, Loc] = {}
    for loc, names in places:
        for name in names:
            if name not in AXES:
                fix = f"write one of {', '.join(AXES)}"
                yield _problem(
                    "unknown-axis", (*loc, name), f"there is no axis {name!r}", fix, positions
                )
            if loc[0] in ("axes", "zip"):
                if name in taken:
                    what = f"{name!r} is varied in {taken[name][0]!r} already"
                    yield _problem(
                        "axis-twice", (*loc, name), what, "keep it in one place", positions
                    )
                taken[name] = loc
    for axis, values in file.axes.items():
        if not values:
            yield _problem(
                "empty-axis",
                ("axes", axis),
                f"{axis!r} has no value",
                "give one, or remove it",
                positions,
            )


def _zip_rows(file: MatrixFile, positions: Positions) -> Iterator[Problem]:
    for number, group in enumerate(file.zip):
        lengths = {axis: len(values) for axis, values in group.items()}
        if not any(lengths.values()):  # no row: it would empty the whole product without a word
            fix = "give it one, or remove it"
            yield _problem("empty-axis", ("zip", number), "this group has no row", fix, positions)
        elif len(set(lengths.values())) > 1:
            what = "zipped axes need equally many values: " + ", ".join(
                f"{a} has {n}" for a, n in lengths.items()
            )
            yield _problem(
                "uneven-zip",
                ("zip", number),
                what,
                "give every axis of the group one value a row",
                positions,
            )


def _requirement(text: str, loc: Loc, positions: Positions) -> Iterator[Problem]:
    try:
        asked = Requirement(
            re.sub(r"\{([a-z_]+)\}", lambda found: _SAMPLES.get(found[1], "1"), text)
        )
        if asked.url and not _ADDRESS.fullmatch(asked.url):
            what = f"{text!r} names a file without saying which: its hash is missing"
            yield _problem(
                "no-hash",
                loc,
                what,
                "write it as name @ https://host/name-1.0-….whl#sha256=…",
                positions,
            )
    except InvalidRequirement as error:
        what = f"{text!r} is no requirement: {str(error).splitlines()[0]}"
        yield _problem(
            "bad-requirement", loc, what, "write it as in PEP 508: name==version", positions
        )


def is_whole(file: MatrixFile, point: Point) -> bool:
    """Whether a cell can be made of ``point``, be it a good one or not."""
    flavor = file.flavors.get(point["flavor"].text) if "flavor" in point else None
    return (
        flavor is not None and flavor.base in file.bases and all(axis in point for axis in NEEDED)
    )


def of_points(file: MatrixFile, found: Sequence[Point], positions: Positions) -> Iterator[Problem]:
    """Rules about points before they are cells: a known flavor, a value for every axis that each
    cell has, and for every override a point that has it.

    ``cuda`` and ``flashinfer`` mean nothing for a CPU cell and may be absent.
    """
    for point in found:
        where = next(
            (str(point[axis].location) for axis in ("vllm", *point) if axis in point),
            f"{positions.file}:1",
        )
        absent = [axis for axis in NEEDED if axis not in point]
        if absent:
            what = f"this cell has no value for {', '.join(absent)}"
            yield Problem(
                code="matrix-missing-axis",
                where=where,
                what=what,
                fix="give one here or in `defaults`",
            )
        flavor = point.get("flavor")
        if flavor and flavor.text not in file.flavors:
            fix = f"write one of {', '.join(file.flavors)}"
            what = f"there is no flavor {flavor.text!r}"
            yield Problem(
                code="matrix-unknown-flavor", where=str(flavor.location), what=what, fix=fix
            )
    for number, entry in enumerate(file.overrides):
        if not any(matches(entry.when, texts(point)) for point in found):
            what = "this override applies to no cell"
            yield _problem(
                "dead-override", ("overrides", number), what, "remove it, or mend `when`", positions
            )


def _problem(code: str, loc: Loc, what: str, fix: str, positions: Positions) -> Problem:
    return Problem(code=f"matrix-{code}", where=str(positions.locate(loc)), what=what, fix=fix)
