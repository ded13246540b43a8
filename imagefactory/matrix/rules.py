"""What must hold in a matrix beyond its shape. Each rule yields every problem that it sees."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from packaging.markers import default_environment
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from imagefactory.errors import Problem
from imagefactory.matrix import origins
from imagefactory.matrix.cell import AXES, Cell
from imagefactory.matrix.expand import Point, matches, texts
from imagefactory.matrix.schema import FlavorEntry, MatrixFile
from imagefactory.system.platforms import Platform
from imagefactory.system.yamlfile import Loc, Positions

#: First Linux driver that runs all of a CUDA toolkit, PTX included: NVIDIA's "CUDA Toolkit and
#: Corresponding Driver Versions" (CUDA release notes, table 3). Minor-version compatibility lets an
#: older 580 driver run binaries of 13.x, but not PTX compiled by it, which is what JIT compilers
#: hand over (vLLM #47397: cudaErrorUnsupportedPtxVersion).
DRIVERS = {"13.0": "580.65.06", "13.1": "590.44.01", "13.2": "595.45.04"}
NEEDED = ("flavor", "platform", "python", "channel", "torch", "vllm")
#: The address of a wheel, with the hash of what is meant.
_ADDRESS = re.compile(r"[^#]+\.whl#sha256=[0-9a-f]{64}")
#: Values of the axes that are no versions, to try a requirement's placeholders with.
_SAMPLES = {"flavor": "gb10", "platform": "linux/arm64", "channel": "cu130"}
_SHORT = re.compile(r"\d+\.\d+")
_CHANNEL = re.compile(r"cpu|cu\d{3}")


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
        if flavor.driver is not None and not _is_version(flavor.driver):
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


def of_cells(cells: Sequence[Cell]) -> Iterator[Problem]:
    """Rules about every cell."""
    for cell in cells:
        yield from _cell(cell)


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


def _cell(cell: Cell) -> Iterator[Problem]:
    axes = cell.axes
    if axes["platform"] not in set(Platform):
        yield _axis(cell, "platform", "unknown-platform", f"write one of {', '.join(Platform)}")
    for axis in ("vllm", "torch", "flashinfer"):
        if axis in axes and not _is_version(axes[axis]):
            yield _axis(cell, axis, "bad-version", "write a version as in PEP 440")
        elif (
            axis in axes and str(Version(axes[axis])) != axes[axis]
        ):  # names, tags and hashes compare the text
            yield _axis(
                cell, axis, "bad-version", f'write it as indexes do: "{Version(axes[axis])}"'
            )
    for axis in ("python", "cuda"):
        if axis in axes and not _SHORT.fullmatch(axes[axis]):
            yield _axis(cell, axis, "bad-version", 'write X.Y, such as "3.13" or "13.0"')
    base = cell.flavor.base
    if axes["python"] != base.python:
        fix = f'write "{base.python}", or choose a base with Python {axes["python"]}'
        what = f"{cell.name}: Python {axes['python']}, but base {base.name} has {base.python}"
        yield Problem(
            code="matrix-python-of-base", where=str(cell.locations["python"]), what=what, fix=fix
        )
    if not _CHANNEL.fullmatch(axes["channel"]):
        yield _axis(cell, "channel", "bad-channel", "write cpu, or cuNNN such as cu130")
        return
    yield from _cuda(cell)


def _cuda(cell: Cell) -> Iterator[Problem]:
    axes = cell.axes
    if axes["channel"] == "cpu":
        if "cuda" in axes:
            yield _axis(
                cell,
                "cuda",
                "cuda-on-cpu",
                "a cell of channel cpu has no CUDA: remove `cuda` from it",
            )
        return
    if "cuda" not in axes:
        fix = 'add `cuda: "13.0"` to the cell'
        what = f"{cell.name}: channel {axes['channel']} needs a CUDA toolkit version"
        yield Problem(
            code="matrix-no-cuda", where=str(cell.locations["channel"]), what=what, fix=fix
        )
        return
    if axes["cuda"].partition(".")[0] != axes["channel"][2:4]:
        fix = "toolkit and torch channel must be of one CUDA major version"
        yield _axis(
            cell,
            "cuda",
            "cuda-major",
            fix,
            f"toolkit {axes['cuda']} beside torch channel {axes['channel']}",
        )
    if not _SHORT.fullmatch(axes["cuda"]):
        return
    driver = cell.flavor.driver
    needs = DRIVERS.get(axes["cuda"])
    if driver is None:
        what = (
            f"flavor {cell.flavor.name} has CUDA cells, and declares no driver to "
            "check their toolkits against"
        )
        fix = 'add `driver:` to the flavor: what nvidia-smi says on its machines, such as "580.95"'
        yield Problem(code="matrix-no-driver", where=str(cell.flavor.location), what=what, fix=fix)
    if needs is None:
        fix = (
            f"write one of {', '.join(DRIVERS)}, or add the toolkit with its source "
            "to matrix/rules.py"
        )
        yield _axis(
            cell,
            "cuda",
            "unknown-toolkit",
            fix,
            f"the driver that CUDA {axes['cuda']} needs is not known here",
        )
    elif driver is not None and _is_version(driver) and Version(needs) > Version(driver):
        what = (
            f"{cell.name}: CUDA {axes['cuda']} needs driver {needs}, the machines "
            f"of {cell.flavor.name} have {driver}"
        )
        runs = [toolkit for toolkit, least in DRIVERS.items() if Version(least) <= Version(driver)]
        lower = f'write cuda: "{runs[-1]}"' if runs else "choose an older toolkit"
        fix = f"{lower}, or declare a newer `driver` ({cell.flavor.location})"
        yield Problem(
            code="matrix-driver-too-old", where=str(cell.locations["cuda"]), what=what, fix=fix
        )


def pin_conflicts(cell: Cell, requires: Mapping[str, Sequence[str]]) -> Iterator[Problem]:
    """Pins of ``cell`` that contradict upstream's own metadata without an override that says so.

    ``requires`` is, by normalized distribution name (``vllm``), the Requires-Dist lines of the
    cell's version of it.
    """
    pinned = _pinned(cell)
    allowed = {canonicalize_name(override.package) for override in cell.overrides}
    environment = _marker_environment(cell)
    for owner, lines in requires.items():
        for line in lines:
            asked = Requirement(line)
            name = canonicalize_name(asked.name)
            if (
                name not in pinned
                or name in allowed
                or (asked.marker and not asked.marker.evaluate(environment))
            ):
                continue
            axis, version = pinned[name]
            if not asked.specifier.contains(Version(version), prereleases=True):
                what = (
                    f"{owner} {cell.axes['vllm']} requires {asked.name}{asked.specifier}, "
                    f"and {version} is pinned"
                )
                exact = ", ".join(s.version for s in asked.specifier if s.operator == "==")
                fix = f"add an override for {name} with its reason" + (
                    f', or write "{exact}"' if exact else ""
                )
                yield Problem(
                    code="matrix-pin-conflict", where=str(cell.locations[axis]), what=what, fix=fix
                )


def _pinned(cell: Cell) -> dict[str, tuple[str, str]]:
    """Package -> (axis, version) for every requirement that an axis pins."""
    found: dict[str, tuple[str, str]] = {}
    for template, text in zip(cell.flavor.requirements, cell.requirements, strict=True):
        axis = re.search(r"==\{([a-z]+)\}", template)
        pin = next((s.version for s in Requirement(text).specifier if s.operator == "=="), None)
        if axis and pin:
            found[canonicalize_name(Requirement(text).name)] = (axis[1], pin)
    return found


def _marker_environment(cell: Cell) -> dict[str, str]:
    own = {
        "python_version": cell.python,
        "python_full_version": f"{cell.python}.0",
        "platform_machine": cell.platform.machine,
    }
    linux = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "extra": ""}
    return {**{k: str(v) for k, v in default_environment().items()}, **linux, **own}


def _axis(cell: Cell, axis: str, code: str, fix: str, what: str = "") -> Problem:
    text = what or f"{axis} is {cell.axes[axis]!r}"
    return Problem(
        code=f"matrix-{code}", where=str(cell.locations[axis]), what=f"{cell.name}: {text}", fix=fix
    )


def _problem(code: str, loc: Loc, what: str, fix: str, positions: Positions) -> Problem:
    return Problem(code=f"matrix-{code}", where=str(positions.locate(loc)), what=what, fix=fix)


def _is_version(text: str) -> bool:
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True
