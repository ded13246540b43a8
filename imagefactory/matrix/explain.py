"""Explains where every value of a cell is set. Pure."""

from __future__ import annotations

from imagefactory.matrix.cell import Cell


def explain(cell: Cell) -> list[tuple[str, str, str, str]]:
    """Rows of (what, value, ``file:line``, section), axes first."""
    rows = [
        (axis, value, str(cell.locations[axis]), cell.locations[axis].section)
        for axis, value in cell.axes.items()
    ]
    flavor = cell.flavor
    own = (str(flavor.location), f"flavors.{flavor.name}")
    rows += [("tag", tag, "", "tags") for tag in cell.tags]
    rows += [("base", f"{flavor.base.name} ({flavor.base.image})", *own)]
    rows += [("requirement", requirement, *own) for requirement in cell.requirements]
    rows += [("patch", patch, *own) for patch in flavor.patches]
    rows += [("env", f"{name}={value}", *own) for name, value in sorted(flavor.env.items())]
    if flavor.serve_args:
        rows.append(("serve", " ".join(flavor.serve_args), *own))
    if flavor.driver:
        rows.append(("driver", flavor.driver, *own))
    for override in cell.overrides:
        text = f"drop {override.requirement}" if override.drop else override.requirement
        rows.append(("override", f"{text}: {override.reason}", str(override.location), "overrides"))
    return rows
