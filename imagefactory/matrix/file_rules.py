"""Rules for a matrix file beyond its schema; each rule yields every problem it finds. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from imagefactory.errors import InputError, Problem
from imagefactory.matrix import axes, credentials, extra_rules, inherit, origins
from imagefactory.matrix.cell import AXES
from imagefactory.matrix.expand import Point, applies
from imagefactory.matrix.schema import (
    BaseEntry,
    FlavorEntry,
    MatrixFile,
    OverrideEntry,
)
from imagefactory.matrix.versions import is_version
from imagefactory.system import reference
from imagefactory.system.yamlfile import Loc, Positions

REQUIRED = ("flavor", "platform", "python", "channel", "torch", "vllm")
#: The URL of a wheel, with the hash of the file.
_WHEEL_URL = re.compile(r"[^#]+\.whl#sha256=[0-9a-f]{64}")
#: Debian Policy 5.6.7.
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+")
#: Sample values to try a requirement's placeholders with; every other axis is a version.
_SAMPLES = {"flavor": "gb10", "platform": "linux/arm64", "channel": "cu130"}


def of_file(file: MatrixFile, positions: Positions) -> Iterator[Problem]:
    """Check axes, zipped rows, bases, flavors, credentials and overrides."""
    yield from axes.problems(file, positions)
    yield from _zip_rows(file, positions)
    for name, base in file.bases.items():
        yield from _base(base, ("bases", name), positions)
    for name, flavor in file.flavors.items():
        yield from _flavor(name, flavor, file, positions)
    yield from credentials.problems(file, positions)
    for name, toolchain in file.toolchains.items():
        for number, text in enumerate(toolchain.requirements):
            loc = ("toolchains", name, "requirements", number)
            yield from _requirement(text, loc, positions)
    for number, entry in enumerate(file.overrides):
        yield from _override(entry, ("overrides", number), positions)


def _override(entry: OverrideEntry, loc: Loc, positions: Positions) -> Iterator[Problem]:
    given = [one for one in (entry.requirement, entry.drop, entry.driver) if one is not None]
    if len(given) != 1:
        what = "an override replaces a requirement, drops a package or accepts a driver"
        fix = "give exactly one of `requirement`, `drop` and `driver`"
        yield _problem("bad-override", loc, what, fix, positions)
        return
    if entry.driver is not None:
        yield from _driver(entry.driver, loc, positions)
        return
    yield from _requirement(entry.requirement or entry.drop or "", loc, positions)
    if entry.drop and re.search(r"[^A-Za-z0-9._{}-]", entry.drop):
        what = f"`drop: {entry.drop}` is not a bare package name"
        fix = "`drop` takes the package's name alone"
        yield _problem("bad-override", loc, what, fix, positions)


def _base(base: BaseEntry, loc: Loc, positions: Positions) -> Iterator[Problem]:
    if not (base.image or base.suite or base.bootstrap):
        what = "this base has neither a suite nor an image"
        fix = "write `suite: trixie` for Debian packages, or `image:` for an image of a registry"
        yield _problem("bad-base", loc, what, fix, positions)
    elif base.suite and (base.image or base.bootstrap):
        other = "image" if base.image else "bootstrap"
        what = f"a base with a `suite` is made from its packages, so `{other}` has no effect"
        yield _problem("bad-base", (*loc, other), what, "keep only one of them", positions)
    elif base.image and not base.bootstrap:
        yield from _image(base.image, (*loc, "image"), positions)
    for number, package in enumerate(base.packages):
        if not _PACKAGE.fullmatch(package):
            what = f"{package!r} is not the name of a Debian package"
            fix = "write the name alone, without a version"
            yield _problem("bad-package", (*loc, "packages", number), what, fix, positions)


def _image(image: str, loc: Loc, positions: Positions) -> Iterator[Problem]:
    """An image that no registry can have."""
    try:
        reference.parse(image)
    except InputError as error:
        for one in error.problems:
            yield _problem("bad-image", loc, one.what, one.fix, positions)


def _flavor(
    name: str, flavor: FlavorEntry, file: MatrixFile, positions: Positions
) -> Iterator[Problem]:
    loc: Loc = ("flavors", name)
    if flavor.base not in file.bases:
        what, fix = f"there is no base {flavor.base!r}", f"write one of {', '.join(file.bases)}"
        yield _problem("unknown-base", (*loc, "base"), what, fix, positions)
    yield from _toolchains(flavor, loc, file, positions)
    yield from _build(flavor, (*loc, "build"), positions)
    yield from extra_rules.problems(flavor, (*loc, "extras"), positions)
    if flavor.driver is not None:
        yield from _driver(flavor.driver, loc, positions)
    for number, patch in enumerate(flavor.patches):
        if not re.fullmatch(r"[a-z0-9][a-z0-9-]*/[a-z0-9][a-z0-9.-]*", patch):
            what = f"{patch!r} is not the name of a patch"
            fix = "write project/name, the folder below patches/"
            yield _problem("bad-patch", (*loc, "patches", number), what, fix, positions)
    for number, text in enumerate(flavor.requirements):
        yield from _requirement(text, (*loc, "requirements", number), positions)
    required = {inherit.subject(text) for text in flavor.requirements}
    for package in flavor.indexes:
        if canonicalize_name(package) not in required:
            what = f"{package} is not required by flavor {name}, so its index decides nothing"
            fix = f"add {package} to `requirements`, or remove it here"
            yield _problem("idle-index", (*loc, "indexes", package), what, fix, positions)


def _driver(text: str, loc: Loc, positions: Positions) -> Iterator[Problem]:
    if not is_version(text):
        what = f"{text!r} is not a driver version"
        fix = 'write the version that nvidia-smi shows, such as "580.95"'
        yield _problem("bad-driver", (*loc, "driver"), what, fix, positions)


def _toolchains(
    flavor: FlavorEntry, loc: Loc, file: MatrixFile, positions: Positions
) -> Iterator[Problem]:
    named: dict[Loc, str | None] = {
        **{(*loc, "extras", key, "tools"): one.tools for key, one in flavor.extras.items()},
        (*loc, "toolchain"): flavor.toolchain,
        (*loc, "build", "tools"): flavor.build.tools if flavor.build else None,
    }
    for key, name in named.items():
        if name is not None and name not in file.toolchains:
            known = ", ".join(file.toolchains)
            what = f"there is no toolchain {name!r}"
            fix = f"write one of {known}" if known else "declare it under `toolchains`"
            yield _problem("unknown-toolchain", key, what, fix, positions)


def _build(flavor: FlavorEntry, loc: Loc, positions: Positions) -> Iterator[Problem]:
    build = flavor.build
    if build is None:
        return
    for key, text in build.sources.items():
        if origins.parse(text) is None:
            what = f"{text!r} is not a source location"
            fix = f"write {origins.FORMS}"
            yield _problem("bad-origin", (*loc, "sources", key), what, fix, positions)
    if build.binaries == "official":
        for key in ("extensions", "sources"):
            if getattr(build, key):
                what = f"`{key}` has no effect, as nothing is compiled"
                fix = "write `binaries: compiled`"
                yield _problem("build-idle", (*loc, key), what, fix, positions)
        return
    yield from _compiled(flavor, bool(build.extensions), loc, positions)


def _compiled(
    flavor: FlavorEntry, has_extensions: bool, loc: Loc, positions: Positions
) -> Iterator[Problem]:
    missing = []
    if not has_extensions:
        fix = "list the CMake targets to compile, such as _C_stable_libtorch"
        missing.append(("`extensions`", fix))
    if flavor.toolchain is None:
        missing.append(("the flavor's `toolchain`", "name the compilers, such as cuda13.0"))
    if "TORCH_CUDA_ARCH_LIST" not in flavor.env:
        missing.append(("TORCH_CUDA_ARCH_LIST", 'set the target GPUs in `env`, such as "12.1a"'))
    for setting, fix in missing:
        what = f"`binaries: compiled` needs {setting}"
        yield _problem("build-lacks", loc, what, fix, positions)


def _zip_rows(file: MatrixFile, positions: Positions) -> Iterator[Problem]:
    for number, group in enumerate(file.zip):
        loc: Loc = ("zip", number)
        lengths = {axis: len(values) for axis, values in group.items()}
        if not any(lengths.values()):  # it would silently empty the whole product
            what, fix = "this group has no rows", "add one, or remove the group"
            yield _problem("empty-axis", loc, what, fix, positions)
        elif len(set(lengths.values())) > 1:
            counts = ", ".join(f"{axis} has {count}" for axis, count in lengths.items())
            what = f"zipped axes need the same number of values: {counts}"
            fix = "give every axis of the group one value per row"
            yield _problem("uneven-zip", loc, what, fix, positions)


def _requirement(text: str, loc: Loc, positions: Positions) -> Iterator[Problem]:
    if any(axis not in AXES for axis in axes.PLACEHOLDER.findall(text)):
        return  # checked in every cell, with the values that the user's axes have there
    sample = axes.PLACEHOLDER.sub(lambda found: _SAMPLES.get(found[1], "1"), text)
    try:
        requirement = Requirement(sample)
    except InvalidRequirement as error:
        what = f"{text!r} is not a valid requirement: {str(error).splitlines()[0]}"
        fix = "write a PEP 508 requirement: name==version"
        yield _problem("bad-requirement", loc, what, fix, positions)
        return
    if requirement.url and not _WHEEL_URL.fullmatch(requirement.url):
        what = f"{text!r} gives a URL without the hash of its file"
        fix = "write name @ https://host/name-1.0-….whl#sha256=…"
        yield _problem("no-hash", loc, what, fix, positions)


def is_complete(file: MatrixFile, point: Point) -> bool:
    """Whether ``point`` has all that a cell needs, even if some values are wrong."""
    flavor = file.flavors.get(point["flavor"].text) if "flavor" in point else None
    if flavor is None or flavor.base not in file.bases:
        return False
    return all(axis in point for axis in REQUIRED)


def of_points(file: MatrixFile, found: Sequence[Point], positions: Positions) -> Iterator[Problem]:
    """Check points before they become cells: known flavors, no missing axes, no unused overrides.

    ``cuda`` and ``flashinfer`` do not apply to CPU cells and may be absent.
    """
    for point in found:
        absent = [axis for axis in REQUIRED if axis not in point]
        if absent:
            written = [str(point[axis].location) for axis in ("vllm", *point) if axis in point]
            where = written[0] if written else f"{positions.file}:1"
            what = f"this cell has no value for {', '.join(absent)}"
            fix = "add one here or in `defaults`"
            yield Problem(code="matrix-missing-axis", where=where, what=what, fix=fix)
        flavor = point.get("flavor")
        if flavor and flavor.text not in file.flavors:
            where = str(flavor.location)
            what = f"there is no flavor {flavor.text!r}"
            fix = f"write one of {', '.join(file.flavors)}"
            yield Problem(code="matrix-unknown-flavor", where=where, what=what, fix=fix)
    for number, entry in enumerate(file.overrides):
        if not any(applies(entry.when, point) for point in found):
            what, fix = "this override matches no cell", "remove it, or fix its `when`"
            yield _problem("dead-override", ("overrides", number), what, fix, positions)


def _problem(code: str, loc: Loc, what: str, fix: str, positions: Positions) -> Problem:
    return Problem(code=f"matrix-{code}", where=str(positions.locate(loc)), what=what, fix=fix)
