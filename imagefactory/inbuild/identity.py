"""Records which torch stands in a tree after an install layer. Standard library only: it runs in the builder.

    python identity.py SITE_PACKAGES GROUP WANTED_VERSION OUT

Run once for each install layer, from the bottom up. Appends ``{"group", "torch": {"version", "cuda"} | null}`` to the
JSON list in OUT: the torch that stands once the layer is on top of those before it. Exits 1 if that is not exactly
WANTED_VERSION: a layer that swaps torch stops the build there, not after the last layer.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path


def torch_of(site: Path) -> dict[str, str | None] | None:
    """``__version__`` and ``cuda`` of the torch below ``site``; None if there is none."""
    file = site / "torch" / "version.py"
    return facts(file.read_text(encoding="utf-8")) if file.is_file() else None


def facts(text: str) -> dict[str, str | None]:
    """``version`` and ``cuda`` that the text of a ``torch/version.py`` assigns, read without running it."""
    found: dict[str, str | None] = {"version": None, "cuda": None}
    for node in ast.parse(text).body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        for target in targets:
            name = target.id.strip("_") if isinstance(target, ast.Name) else ""
            if name in found and isinstance(value, ast.Constant):
                found[name] = None if value.value is None else str(value.value)
    return found


def main(site: Path, group: str, wanted: str, out: Path) -> int:
    """Record and judge; see the module's text."""
    rows = json.loads(out.read_text(encoding="utf-8")) if out.exists() else []
    seen = torch_of(site) or (rows[-1]["torch"] if rows else None)
    rows.append({"group": group, "torch": seen})
    out.write_text(json.dumps(rows), encoding="utf-8")
    if seen is not None and seen["version"] != wanted:
        print(f"after layer {group}: torch is {seen['version']}, the lock says {wanted}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], Path(sys.argv[4])))
