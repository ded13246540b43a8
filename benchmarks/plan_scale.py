"""How long planning takes: a matrix of many cells is expanded, matched with the lock, patched, rendered and hashed.

python benchmarks/plan_scale.py [CELLS]
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path

from imagefactory import bases, ui
from imagefactory.options import workspace_of

ROOT = Path(__file__).parents[1]


def project(folder: Path, cells: int) -> Path:
    """A copy of the project whose matrix has ``cells`` cells: the gb10 flavor many times, with another setting each."""
    for name in ("patches", "templates"):
        (folder / name).symlink_to(ROOT / name)
    shutil.copy(ROOT / "wheels.lock", folder)
    head, _, rest = (ROOT / "matrix.yaml").read_text(encoding="utf-8").partition("  gb10:\n")
    gb10, _, tail = rest.partition("# Compilers, each")
    names = [f"g{number}" for number in range(cells // 2)]
    flavors = "".join(f"  {n}:\n{gb10.rstrip()}\n      NUMBER: {n}\n" for n in names)
    tail = tail.replace("  flavor: gb10\n", "").replace("axes:\n", f"axes:\n  flavor: [{', '.join(names)}]\n")
    tail = tail.replace("{flavor: gb10, ", "{")
    path = folder / "matrix.yaml"
    path.write_text(f"{head}{flavors}\n# Compilers, each{tail}", encoding="utf-8")
    return path


def main() -> None:
    """Print the seconds of each part."""
    cells = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    with tempfile.TemporaryDirectory() as name:
        workspace = workspace_of(project(Path(name), cells))
        began = time.perf_counter()
        expanded = workspace.cells([])
        matrix = time.perf_counter()
        _ = workspace.lock
        lock = time.perf_counter()
        found = {(c.flavor.base.name, c.platform): bases.unresolved(c.flavor.base, c.platform) for c in expanded}
        plans = workspace.plans(expanded, found)
        done = time.perf_counter()
    parts = f"matrix {matrix - began:.2f} s, lock {lock - matrix:.2f} s, plan and render {done - lock:.2f} s"
    ui.out.print(f"{len(plans)} cells: {parts}")
    keys = len({plan.build_key for plan in plans})
    ui.out.print(f"{(done - began) / len(plans) * 1000:.2f} ms a cell, {keys} build keys")


if __name__ == "__main__":
    main()
