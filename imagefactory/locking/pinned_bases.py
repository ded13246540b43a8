"""Bases that the matrix gives by digest: whether their registry has them."""

from __future__ import annotations

from collections.abc import Iterable

from imagefactory.errors import Problem, SetupError
from imagefactory.matrix.cell import Base, Cell
from imagefactory.system import ui
from imagefactory.system.manifests import Manifest
from imagefactory.system.platforms import Platform
from imagefactory.system.registry import Registries


def check(cells: Iterable[Cell], registries: Registries) -> list[Problem]:
    """A problem for each digest that a registry does not have, or not for a cell's platform.

    A registry that does not answer is a warning: whether it has the digest is inconclusive.
    """
    wanted: dict[str, tuple[Base, set[Platform]]] = {}
    for cell in cells:
        base = cell.flavor.base
        if "@" in base.image:
            wanted.setdefault(base.name, (base, set()))[1].add(cell.platform)
    problems = []
    for base, platforms in wanted.values():
        try:
            found = registries.manifest(base.image)
        except SetupError as error:
            ui.warn(f"inconclusive whether {base.image} exists: {error.problems[0].what}")
            continue
        problem = _problem(base, platforms, found)
        problems += [problem] if problem else []
    return problems


def _problem(base: Base, platforms: Iterable[Platform], found: Manifest | None) -> Problem | None:
    where = str(base.where("image"))
    name = base.image.partition("@")[0]
    if found is None:
        what = f"its registry does not have {base.image}"
        fix = f"copy the digest from the registry: docker buildx imagetools inspect {name}"
        return Problem(code="base-unknown", where=where, what=what, fix=fix)
    has = {one.platform for one in found.manifests}
    lacks = sorted({*platforms} - has) if has else []
    if not lacks:
        return None
    listed = ", ".join(sorted(one for one in has if not one.startswith("unknown")))
    what = f"{base.image} has no image for {', '.join(lacks)}, only for {listed}"
    fix = "write the digest of the index of all platforms, not that of one platform's image"
    return Problem(code="base-other-platform", where=where, what=what, fix=fix)
