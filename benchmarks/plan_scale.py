"""Measures how long it takes to plan a matrix of many cells, from expansion to build keys.

    python benchmarks/plan_scale.py [CELLS] [--unchanged CELLS]

``--unchanged`` needs an engine. It gives as many cells images that contain only their labels, with
receipts as if they had been verified, and runs ``imagefactory build --matrix`` as a user would, to
find that there is nothing to do.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from measure import REPOSITORY, ROOT, command
from report import Goal

from imagefactory import opening, pipeline
from imagefactory.commands.options import workspace_of
from imagefactory.errors import SetupError, fail
from imagefactory.planning import planning as stations
from imagefactory.planning.cell_plan import CellPlan
from imagefactory.settings import from_environment
from imagefactory.system import shell, ui
from imagefactory.system.engine import Engine
from imagefactory.verifying import receipt

NAME, ROUNDS = f"{REPOSITORY}-scale", 5
#: Seconds.
GOAL = 1.0


def project(folder: Path, cells: int) -> Path:
    """A copy of the project with ``cells`` cells: many gb10 flavors with different settings."""
    for name in ("patches", "templates"):
        (folder / name).symlink_to(ROOT / name)
    shutil.copy(ROOT / "wheels.lock", folder)
    head, _, rest = (ROOT / "matrix.yaml").read_text(encoding="utf-8").partition("  gb10:\n")
    gb10, _, tail = rest.partition("# Compilers, each")
    names = [f"g{number}" for number in range(cells // 2)]
    flavors = "".join(f"  {n}:\n{gb10.rstrip()}\n      NUMBER: {n}\n" for n in names)
    tail = tail.replace("  flavor: gb10\n", "").replace(
        "axes:\n", f"axes:\n  flavor: [{', '.join(names)}]\n"
    )
    tail = tail.replace("{flavor: gb10, ", "{")
    path = folder / "matrix.yaml"
    path.write_text(f"{head}{flavors}\n# Compilers, each{tail}", encoding="utf-8")
    return path


def planning(cells: int) -> Goal:
    """The seconds from reading the matrix to the last build key."""
    with tempfile.TemporaryDirectory() as name:
        workspace = workspace_of(project(Path(name), cells))
        start = time.perf_counter()
        inputs = opening.read(workspace)
        expanded = inputs.matrix.cells
        read = time.perf_counter()
        found = stations.bases(expanded, [], inputs.lock)
        keys = {plan.build_key for plan in stations.plan(expanded, found, inputs)}
        seconds = time.perf_counter() - read
    reading = f"+ {read - start:.2f} s to read files"
    result = f"{seconds:.2f} s ({reading}), {len(keys):,} build keys"
    return Goal(f"planning {len(expanded):,} cells", result, GOAL, seconds, " s")


def unchanged(cells: int, engine: Engine) -> Goal:
    """The seconds of a build of ``cells`` that are all unchanged."""
    with tempfile.TemporaryDirectory() as name:
        file = project(Path(name), cells)
        file.write_text(
            file.read_text(encoding="utf-8").replace(
                "repository: imagefactory/vllm", f"repository: {NAME}"
            )
        )
        workspace = workspace_of(file)
        plans = list(pipeline.plan(workspace, [], allow_no_engine=False).plans)
        state = _own_state(Path(name), workspace.settings.state)
        try:
            for plan in plans:
                _stand_in(Path(name), plan, engine)
            _keep_receipts(plans, engine, state / "receipts")
            seconds = sorted(_build(file, state.parent) for _ in range(ROUNDS))
        finally:
            for tag in engine.names(NAME):
                engine.untag(tag)
    middle = statistics.median(seconds)
    result = f"{middle:.2f} s (median of {ROUNDS}, {seconds[0]:.2f} to {seconds[-1]:.2f})"
    return Goal(f"`build --matrix` of {len(plans)} unchanged cells", result, GOAL, middle, " s")


def _stand_in(folder: Path, plan: CellPlan, engine: Engine) -> None:
    """Build an image that contains only the build key of ``plan``."""
    context = folder / "image"
    context.mkdir(exist_ok=True)
    text = f"FROM scratch\nCOPY . /\nLABEL io.imagefactory.build-key={plan.build_key}\n"
    (context / "Dockerfile").write_text(text, encoding="utf-8")
    engine.build(context, tag=plan.cell.tag)


def _own_state(folder: Path, real: Path) -> Path:
    """A state folder with the engine of the ``real`` one, for the made-up receipts."""
    state = folder / "state" / real.name
    state.mkdir(parents=True)
    if (real / "engine").exists():
        (state / "engine").symlink_to(real / "engine")
    return state


def _keep_receipts(plans: Sequence[CellPlan], engine: Engine, folder: Path) -> None:
    """Save receipts for the stand-ins of ``plans``, as if they had been verified."""
    images = engine.find_images(plan.cell.tag for plan in plans)
    check = receipt.CheckResult(
        name="stand-in",
        outcome=receipt.Outcome.PASS,
        required=True,
        detail="an empty image",
        seconds=0.0,
    )
    for plan in plans:
        one = receipt.Receipt(
            digest=images[plan.cell.tag].digest,
            tag=plan.cell.tag,
            cell=plan.cell.name,
            build_key=plan.build_key,
            verified_at=datetime.now(UTC).isoformat(timespec="seconds"),
            checks=(check,),
        )
        receipt.save(folder, one)


def _build(file: Path, state: Path) -> float:
    """The wall-clock seconds of `imagefactory build`, with bytecode as in an installed package."""
    start = time.perf_counter()
    argv = [sys.executable, "-m", "imagefactory", "build", "--matrix", str(file), "--json"]
    done = shell.run(
        argv, env={"PYTHONDONTWRITEBYTECODE": "", "XDG_STATE_HOME": str(state)}, quiet=True
    )
    seconds = time.perf_counter() - start
    if not done.ok or {row["action"] for row in json.loads(done.out)} != {"skip"}:
        what = f"some cells were not unchanged: {done.err[-500:]}"
        raise fail(SetupError, "bench-changed", what, fix="lock, then run it again")
    return seconds


def main() -> None:
    """Measure, and print the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("cells", nargs="?", type=int, default=1000, metavar="CELLS")
    parser.add_argument("--unchanged", type=int, metavar="CELLS")
    options = parser.parse_args()

    def work() -> None:
        if options.unchanged:
            engine = Engine.connect(os.environ, from_environment(os.environ).state)
            goal = unchanged(options.unchanged, engine)
        else:
            goal = planning(options.cells)
        ui.line(f"{goal.what}: {goal.result}; {goal.verdict()}")

    command(work)


if __name__ == "__main__":
    main()
