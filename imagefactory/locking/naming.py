"""Names of resolutions: which cells share one, and what it is called. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from imagefactory.matrix.cell import AXES, Cell, Request, request_of


def named_requests(cells: Sequence[Cell]) -> list[tuple[str, list[Cell], Request]]:
    """Each distinct request once, with a name for it and the cells that make it."""
    found: dict[object, list[Cell]] = {}
    for cell in cells:
        found.setdefault(_question(request_of(cell)), []).append(cell)
    names: dict[str, int] = {}
    rows = []
    for users in found.values():
        cell = users[0]
        arch, python = cell.platform.replace("/", "-"), cell.python.replace(".", "")
        own = [f"-{axis}-{value}" for axis, value in cell.axes.items() if axis not in AXES]
        name = f"{arch}-py{python}-{cell.channel}-vllm-{cell.vllm}{''.join(own)}"
        names[name] = names.get(name, 0) + 1
        label = name if names[name] == 1 else f"{name}-{names[name]}"
        rows.append((label, users, request_of(cell)))
    return rows


def _question(request: Request) -> tuple[Request, tuple[tuple[str, bool], ...]]:
    """``request`` without reasons and locations, which do not matter for the resolution."""
    overrides = tuple((one.requirement, one.drop) for one in request.overrides)
    return replace(request, overrides=()), overrides
