"""Finds which torch is in effect after each install layer, without running it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from imagefactory.building.tree import Tree
from imagefactory.errors import CheckFailedError, fail
from imagefactory.locking.torch_build import facts


def torch_of(tree: Tree, site: str) -> dict[str, str | None] | None:
    """``version`` and ``cuda`` of the torch in ``site`` of ``tree``; None if there is none."""
    entry = tree.entries.get(f"{site}/torch/version.py")
    return facts(entry.read().decode()) if entry else None


def after_each(
    layers: Sequence[tuple[str, Tree]], site: str, wanted: str
) -> list[dict[str, object]]:
    """The torch in effect after each layer, as ``{"group", "torch"}``.

    ``layers`` are names and files, from the bottom up; a torch is ``{"version", "cuda"}``, or None
    while no layer has one. Raises CheckFailedError at the first layer after which it is not
    ``wanted``.
    """
    rows: list[dict[str, object]] = []
    current = None
    for name, tree in layers:
        current = torch_of(tree, site) or current
        rows.append({"group": name, "torch": current})
        if current is not None and current["version"] != wanted:
            what = f"after layer {name}, torch is {current['version']}; the lock has {wanted}"
            fix = "a wheel brings a torch of its own: see which files it has, and drop it"
            raise fail(CheckFailedError, "torch-swapped", what, fix=fix)
    return rows
