"""What must hold for every cell: versions, its base's Python, CUDA toolkit and driver. Pure."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from packaging.version import Version

from imagefactory.errors import Problem
from imagefactory.matrix.cell import Cell
from imagefactory.matrix.versions import is_version
from imagefactory.system.platforms import Platform

_SHORT = re.compile(r"\d+\.\d+")
_CHANNEL = re.compile(r"cpu|cu\d{3}")
#: First Linux driver for each CUDA toolkit.
DRIVERS_FILE = Path(__file__).with_name("cuda_drivers.toml")


@cache
def drivers() -> Mapping[str, str]:
    """CUDA toolkit (``13.0``) -> the first driver that runs all of it, oldest toolkit first."""
    found: dict[str, str] = tomllib.loads(DRIVERS_FILE.read_text(encoding="utf-8"))["drivers"]
    return found


def of_cells(cells: Sequence[Cell]) -> Iterator[Problem]:
    """Rules about every cell."""
    for cell in cells:
        yield from _cell(cell)


def _cell(cell: Cell) -> Iterator[Problem]:
    axes = cell.axes
    if axes["platform"] not in set(Platform):
        yield _axis(cell, "platform", "unknown-platform", f"write one of {', '.join(Platform)}")
    for axis in ("vllm", "torch", "flashinfer"):
        if axis in axes and not is_version(axes[axis]):
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
    needs = drivers().get(axes["cuda"])
    if driver is None:
        what = (
            f"flavor {cell.flavor.name} has CUDA cells, and declares no driver to "
            "check their toolkits against"
        )
        fix = 'add `driver:` to the flavor: what nvidia-smi says on its machines, such as "580.95"'
        yield Problem(code="matrix-no-driver", where=str(cell.flavor.location), what=what, fix=fix)
    if needs is None:
        fix = (
            f"write one of {', '.join(drivers())}, or add the toolkit with its source "
            "to matrix/rules.py"
        )
        yield _axis(
            cell,
            "cuda",
            "unknown-toolkit",
            fix,
            f"the driver that CUDA {axes['cuda']} needs is not known here",
        )
    elif driver is not None and is_version(driver) and Version(needs) > Version(driver):
        what = (
            f"{cell.name}: CUDA {axes['cuda']} needs driver {needs}, the machines "
            f"of {cell.flavor.name} have {driver}"
        )
        runs = [
            toolkit for toolkit, least in drivers().items() if Version(least) <= Version(driver)
        ]
        lower = f'write cuda: "{runs[-1]}"' if runs else "choose an older toolkit"
        fix = f"{lower}, or declare a newer `driver` ({cell.flavor.location})"
        yield Problem(
            code="matrix-driver-too-old", where=str(cell.locations["cuda"]), what=what, fix=fix
        )


def _axis(cell: Cell, axis: str, code: str, fix: str, what: str = "") -> Problem:
    text = what or f"{axis} is {cell.axes[axis]!r}"
    return Problem(
        code=f"matrix-{code}", where=str(cell.locations[axis]), what=f"{cell.name}: {text}", fix=fix
    )
