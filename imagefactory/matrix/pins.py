"""Compares a cell's pins with the requirements in upstream's own metadata. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from imagefactory.errors import Problem
from imagefactory.matrix.axes import PLACEHOLDER
from imagefactory.matrix.cell import Cell


def pin_conflicts(cell: Cell, requires: Mapping[str, Sequence[str]]) -> Iterator[Problem]:
    """Report pins of ``cell`` that contradict upstream's metadata and have no override.

    ``requires`` maps a normalized distribution name (``vllm``) to the Requires-Dist lines of the
    version that the cell pins.
    """
    pinned = _pinned(cell)
    allowed = {canonicalize_name(override.package) for override in cell.overrides}
    environment = _marker_environment(cell)
    for owner, lines in requires.items():
        for line in lines:
            requirement = Requirement(line)
            name = canonicalize_name(requirement.name)
            if (
                name not in pinned
                or name in allowed
                or (requirement.marker and not requirement.marker.evaluate(environment))
            ):
                continue
            axis, version = pinned[name]
            if not requirement.specifier.contains(Version(version), prereleases=True):
                what = (
                    f"{owner} {cell.vllm} requires {requirement.name}{requirement.specifier}, "
                    f"and {version} is pinned"
                )
                exact = ", ".join(s.version for s in requirement.specifier if s.operator == "==")
                alternative = f', or write "{exact}"' if exact else ""
                fix = f"add an override for {name} with a reason{alternative}"
                where = str(cell.locations[axis])
                yield Problem(code="matrix-pin-conflict", where=where, what=what, fix=fix)


def _pinned(cell: Cell) -> dict[str, tuple[str, str]]:
    """Package -> (axis, version), for every requirement that an axis pins."""
    found: dict[str, tuple[str, str]] = {}
    for template, text in zip(cell.flavor.requirements, cell.requirements, strict=True):
        axis = re.search(f"=={PLACEHOLDER.pattern}", template)
        pin = next((s.version for s in Requirement(text).specifier if s.operator == "=="), None)
        if axis and pin and not pin.endswith(".*"):
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
