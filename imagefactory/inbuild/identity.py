"""Finds which torch a tree of site-packages has, without running it. Standard library only: it runs
in the builder, as part of belt.py.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from pathlib import Path


def torch_of(site: Path) -> dict[str, str | None] | None:
    """``__version__`` and ``cuda`` of the torch below ``site``; None if there is none."""
    file = site / "torch" / "version.py"
    return facts(file.read_text(encoding="utf-8")) if file.is_file() else None


def facts(text: str) -> dict[str, str | None]:
    """``version`` and ``cuda`` that the text of a ``torch/version.py`` assigns."""
    found: dict[str, str | None] = {"version": None, "cuda": None}
    for node in ast.parse(text).body:
        targets = (
            node.targets
            if isinstance(node, ast.Assign)
            else [node.target]
            if isinstance(node, ast.AnnAssign)
            else []
        )
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        for target in targets:
            name = target.id.strip("_") if isinstance(target, ast.Name) else ""
            if name in found and isinstance(value, ast.Constant):
                found[name] = None if value.value is None else str(value.value)
    return found


def after_each(layers: Sequence[tuple[str, Path]], wanted: str) -> list[dict[str, object]]:
    """The torch in effect after each layer, as ``{"group", "torch"}``.

    ``layers`` are names and site-packages, from the bottom up; a torch is ``{"version", "cuda"}``,
    or None while no layer has one. Raises SystemExit at the first layer after which it is not
    ``wanted``.
    """
    rows: list[dict[str, object]] = []
    current = None
    for name, site in layers:
        current = torch_of(site) or current
        rows.append({"group": name, "torch": current})
        if current is not None and current["version"] != wanted:
            sys.exit(f"after layer {name}: torch is {current['version']}, the lock says {wanted}")
    return rows
