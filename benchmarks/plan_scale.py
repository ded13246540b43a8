"""How long planning takes: a matrix of many cells is expanded, matched with the lock, patched, rendered and hashed.

    python benchmarks/plan_scale.py [CELLS] [--unchanged CELLS]

``--unchanged`` needs an engine: as many cells are given images that hold nothing but their labels, and ``imagefactory
build --matrix`` is run as a user runs it, to find that there is nothing to do.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from imagefactory import bases, shell, ui
from imagefactory.engine import Engine
from imagefactory.options import workspace_of
from imagefactory.settings import from_environment

ROOT = Path(__file__).resolve().parents[1]
NAME, ROUNDS = "imagefactory/bench-scale", 5


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


def unchanged(cells: int) -> None:
    """Print the seconds of a build of ``cells`` that are all there."""
    engine = Engine.connect(os.environ, from_environment(os.environ, ROOT).state)
    with tempfile.TemporaryDirectory() as name:
        file = project(Path(name), cells)
        file.write_text(
            file.read_text(encoding="utf-8").replace("repository: imagefactory/vllm", f"repository: {NAME}")
        )
        workspace = workspace_of(file)
        plans = workspace.plans(workspace.cells([]), workspace.look_everywhere(workspace.cells([]), engine))
        try:
            for plan in plans:
                text = f"FROM scratch\nCOPY . /\nLABEL io.imagefactory.build-key={plan.build_key}\n"
                (Path(name) / "image").mkdir(exist_ok=True)
                (Path(name) / "image" / "Dockerfile").write_text(text, encoding="utf-8")
                argv = [*engine.docker, "buildx", "build", "--quiet", "--provenance=false", "--load"]
                shell.run([*argv, "--tag", plan.cell.tags[0], str(Path(name) / "image")], quiet=True)
            seconds = []
            for _ in range(ROUNDS):
                began = time.perf_counter()
                done = shell.run(
                    [sys.executable, "-m", "imagefactory", "build", "--matrix", str(file), "--no-verify", "--json"]
                )
                seconds.append(time.perf_counter() - began)
                if not done.ok or {row["action"] for row in json.loads(done.out)} != {"skip"}:
                    sys.exit(f"not unchanged: {done.err}")
        finally:
            for tag in engine.names(NAME):
                engine.untag(tag)
    ui.out.print(f"build --matrix over {len(plans)} unchanged cells: {min(seconds):.2f} to {max(seconds):.2f} s")


def main() -> None:
    """Print the seconds of each part."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("cells", nargs="?", type=int, default=1000, metavar="CELLS")
    parser.add_argument("--unchanged", type=int, metavar="CELLS")
    asked = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed program is not compiled anew each time it starts
    if asked.unchanged:
        unchanged(asked.unchanged)
        return
    cells = asked.cells
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
