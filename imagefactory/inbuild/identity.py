"""Records which torch stands in a tree after each install layer. Standard library only: it runs in
the builder.

    python identity.py SITE_PACKAGES WANTED_VERSION OUT LAYER...

The LAYERs are folders, from the bottom up; SITE_PACKAGES is below each of them. OUT becomes a JSON
list of ``{"group", "torch": {"version", "cuda"} | null}``: the torch that stands once the layer of
that name is on top of those before it. Exits 1 at the first where that is not exactly
WANTED_VERSION, and names it.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Sequence
from pathlib import Path


def torch_of(site: Path) -> dict[str, str | None] | None:
    """``__version__`` and ``cuda`` of the torch below ``site``; None if there is none."""
    file = site / "torch" / "version.py"
    return facts(file.read_text(encoding="utf-8")) if file.is_file() else None


def facts(text: str) -> dict[str, str | None]:
    """``version`` and ``cuda`` that the text of a ``torch/version.py`` assigns.

    Read without running it.
    """
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


def main(site: Path, wanted: str, out: Path, layers: Sequence[Path]) -> int:
    """Record and judge; see the module's text."""
    rows: list[dict[str, object]] = []
    stands = None
    for layer in layers:
        stands = torch_of(layer / site) or stands
        rows.append({"group": layer.name, "torch": stands})
        if stands is not None and stands["version"] != wanted:
            print(
                f"after layer {layer.name}: torch is {stands['version']}, the lock says {wanted}",
                file=sys.stderr,
            )
            return 1
    out.write_text(json.dumps(rows), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(
        main(
            Path(sys.argv[1]),
            sys.argv[2],
            Path(sys.argv[3]),
            [Path(argument) for argument in sys.argv[4:]],
        )
    )
