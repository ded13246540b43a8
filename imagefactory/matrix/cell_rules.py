"""Rules for cells: versions, the base's Python, CUDA toolkit and driver. Pure."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import Version

from imagefactory.errors import Problem
from imagefactory.matrix.cell import AXES, Cell, DriverOverride
from imagefactory.matrix.versions import is_version
from imagefactory.system.platforms import Platform

_VERSIONS = ("vllm", "torch", "flashinfer")
_SHORT = re.compile(r"[0-9]+\.[0-9]+")
_CHANNEL = re.compile(r"cpu|cu[0-9]{3}")
#: The oldest Linux driver for each CUDA toolkit.
DRIVERS_FILE = Path(__file__).with_name("cuda_drivers.toml")


@cache
def drivers() -> Mapping[str, str]:
    """CUDA toolkit (``13.0``) -> the oldest driver that fully supports it; oldest toolkit first."""
    found: dict[str, str] = tomllib.loads(DRIVERS_FILE.read_text(encoding="utf-8"))["drivers"]
    return found


def of_cells(cells: Sequence[Cell]) -> Iterator[Problem]:
    """Check every cell against all rules."""
    for cell in cells:
        yield from _cell(cell)
    yield from _driver_overrides(cells)


def _cell(cell: Cell) -> Iterator[Problem]:
    axes = cell.axes
    if axes["platform"] not in set(Platform):
        yield _axis(cell, "platform", "unknown-platform", f"write one of {', '.join(Platform)}")
    bad = [*_versions(cell)]
    yield from bad or _requirements(cell)
    base = cell.flavor.base
    if cell.python != base.python:
        what = f"Python is {cell.python}, but base {base.name} has {base.python}"
        fix = f'write "{base.python}", or choose a base with Python {cell.python}'
        yield _axis(cell, "python", "python-of-base", fix, what)
    if not _CHANNEL.fullmatch(cell.channel):
        yield _axis(cell, "channel", "bad-channel", "write cpu, or cuNNN such as cu130")
        return
    yield from _cuda(cell)


def _versions(cell: Cell) -> Iterator[Problem]:
    axes = cell.axes
    for axis in _VERSIONS:
        if axis in axes and (fix := _version_fix(axes[axis])):
            yield _axis(cell, axis, "bad-version", fix)
    for axis in ("python", "cuda"):
        if axis in axes and not _SHORT.fullmatch(axes[axis]):
            yield _axis(cell, axis, "bad-version", 'write X.Y, such as "3.13" or "13.0"')


@lru_cache(maxsize=4096)
def _version_fix(text: str) -> str:
    """What to write instead of ``text``; empty for a normalized version."""
    if not is_version(text):
        return "write a PEP 440 version"
    normalized = str(Version(text))  # names, tags and hashes compare the text
    return "" if normalized == text else f'write the normalized form: "{normalized}"'


def _requirements(cell: Cell) -> Iterator[Problem]:
    """Report requirements that the values of axes make invalid."""
    written = [
        (text, cell.flavor.where("requirements", template))
        for template, text in zip(cell.flavor.requirements, cell.requirements, strict=True)
    ]
    written += [(one.requirement, one.location) for one in cell.overrides if one.requirement]
    for text, where in written:
        if wrong := _requirement_error(text):
            from_axes = [axis for axis in cell.axes if axis in _VERSIONS or axis not in AXES]
            values = ", ".join(f"{axis} {cell.axes[axis]!r}" for axis in from_axes)
            what = f"{cell.name}: {text!r} is not a valid requirement: {wrong}"
            fix = f"correct it, or the value that it is made from ({values})"
            yield Problem(code="matrix-bad-requirement", where=str(where), what=what, fix=fix)


@lru_cache(maxsize=8192)
def _requirement_error(text: str) -> str:
    """What is wrong with a requirement; empty for a valid one."""
    try:
        Requirement(text)
    except InvalidRequirement as error:
        return str(error).splitlines()[0]
    return ""


def _cuda(cell: Cell) -> Iterator[Problem]:
    axes, channel = cell.axes, cell.channel
    if channel == "cpu":
        if "cuda" in axes:
            what = "a cell of channel cpu has no CUDA"
            yield _axis(cell, "cuda", "cuda-on-cpu", "remove `cuda` from the cell", what)
        return
    if "cuda" not in axes:
        what = f"channel {channel} needs a CUDA toolkit version"
        yield _axis(cell, "channel", "no-cuda", 'add `cuda: "13.0"` to the cell', what)
        return
    if axes["cuda"].partition(".")[0] != channel[2:4]:
        what = f"toolkit {axes['cuda']} does not match torch channel {channel}"
        fix = "choose a toolkit and a torch channel of the same CUDA major version"
        yield _axis(cell, "cuda", "cuda-major", fix, what)
    if _SHORT.fullmatch(axes["cuda"]):
        yield from _driver(cell)


def _driver(cell: Cell) -> Iterator[Problem]:
    flavor, toolkit = cell.flavor, cell.axes["cuda"]
    driver, required = flavor.driver, required_driver(cell)
    if driver is None:
        what = f"flavor {flavor.name} has CUDA cells but declares no driver"
        fix = 'add `driver:` with the version that nvidia-smi shows there, such as "580.95"'
        yield Problem(code="matrix-no-driver", where=str(flavor.location), what=what, fix=fix)
    if required is None:
        what = f"the driver required by CUDA {toolkit} is unknown"
        fix = (
            f"write one of {', '.join(drivers())}, or add an override: `driver:` with the oldest "
            "that it runs on, and a `reason`"
        )
        yield _axis(cell, "cuda", "unknown-toolkit", fix, what)
    elif driver is not None and not is_new_enough(driver, required):
        supported = [name for name, oldest in drivers().items() if is_new_enough(driver, oldest)]
        older = f'write cuda: "{supported[-1]}"' if supported else "choose an older toolkit"
        what = f"CUDA {toolkit} needs driver {required}, but flavor {flavor.name} declares {driver}"
        fix = (
            f"{older}, or declare a newer `driver` ({flavor.where('driver')}), or, if it is known "
            f'to run, add an override: `driver: "{driver}"`, `when` and a `reason`'
        )
        yield _axis(cell, "cuda", "driver-too-old", fix, what)


def required_driver(cell: Cell) -> str | None:
    """The oldest driver that the toolkit of ``cell`` runs on; None if it has none, or unknown."""
    accepted = next((one.driver for one in cell.driver_overrides), None)
    return accepted or drivers().get(cell.axes.get("cuda", ""))


def _driver_overrides(cells: Sequence[Cell]) -> Iterator[Problem]:
    """Report overrides of the driver that contradict each other or decide nothing."""
    needed: dict[DriverOverride, bool] = {}
    for cell in cells:
        for one in cell.driver_overrides:
            needed[one] = needed.get(one, False) or _needs_override(cell)
        for one in cell.driver_overrides[1:]:
            what = f"two overrides set the driver of {cell.name}"
            fix = f"fix the `when` of one of them ({cell.driver_overrides[0].location})"
            where = str(one.location)
            yield Problem(code="matrix-bad-override", where=where, what=what, fix=fix)
    for one in (one for one, is_needed in needed.items() if not is_needed):
        what = "this override decides nothing: the toolkits of its cells run on their drivers"
        fix = "remove it, or fix its `when`"
        yield Problem(code="matrix-idle-override", where=str(one.location), what=what, fix=fix)


def _needs_override(cell: Cell) -> bool:
    documented, driver = drivers().get(cell.axes.get("cuda", "")), cell.flavor.driver
    if "cuda" not in cell.axes or driver is None:
        return False
    return documented is None or not is_new_enough(driver, documented)


@lru_cache(maxsize=4096)
def is_new_enough(driver: str, oldest: str) -> bool:
    """Whether ``driver`` is at least ``oldest``; an invalid one has been reported elsewhere."""
    if not (is_version(driver) and is_version(oldest)):
        return True
    return Version(oldest) <= Version(driver)


def _axis(cell: Cell, axis: str, code: str, fix: str, what: str = "") -> Problem:
    what = f"{cell.name}: {what or f'{axis} is {cell.axes[axis]!r}'}"
    return Problem(code=f"matrix-{code}", where=str(cell.locations[axis]), what=what, fix=fix)
