"""Measures how long it takes to plan a matrix of many cells, from its files to build keys.

    python benchmarks/plan_scale.py [--cells CELLS] [--stacks STACKS] [--unchanged CELLS]

CELLS is how many cells each of five releases of vLLM has, STACKS how many of them have wheels of
their own: their resolutions are copies of a real one. Times are CPU seconds.

``--unchanged`` needs an engine. It gives as many cells images that contain only their labels, with
receipts as if they had been verified, and runs ``imagefactory build --matrix`` as a user would, to
find that there is nothing to do.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import yaml
from measure import REPOSITORY, ROOT, command
from report import Goal

from imagefactory import opening, pipeline
from imagefactory.commands.options import workspace_of
from imagefactory.errors import SetupError, fail
from imagefactory.locking import store
from imagefactory.locking.lock import Resolution, Wheel
from imagefactory.matrix import matrix
from imagefactory.planning import planning as stations
from imagefactory.planning.cell_plan import CellPlan
from imagefactory.settings import from_environment
from imagefactory.system import shell, ui
from imagefactory.system.engine import Engine
from imagefactory.verifying import receipt
from imagefactory.verifying.receipt_store import ReceiptStore

NAME, ROUNDS = f"{REPOSITORY}-scale", 5
#: The newest one is locked; the others are copies of its resolution with another vLLM.
RELEASES = ("0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0")
#: For each release: cells, and how many of them have wheels of their own.
CELLS, STACKS = 200, 20
#: Seconds.
GOAL, UNCHANGED_GOAL = 10.0, 1.0


def project(folder: Path, cells: int, stacks: int = 1) -> Path:
    """A copy of the project with ``cells`` cells for each release, and a lock for them.

    Each stack is a version of transformers; each release and stack has a resolution of its own.
    """
    for name in ("patches", "templates"):
        (folder / name).symlink_to(ROOT / name)
    given = store.read(ROOT / "wheels.lock")
    real = next(one for one in given.resolutions if f"vllm=={RELEASES[-1]}" in one.requirements)
    first = next(wheel.version for wheel in real.wheels if wheel.name == "transformers")
    versions = [first, *(f"{first}.post{number}" for number in range(1, stacks))]
    copies = tuple(_copy(real, release, stack) for release in RELEASES for stack in versions)
    store.write(folder / "wheels.lock", replace(given, resolutions=copies), guards=folder / "locks")
    path = folder / "matrix.yaml"
    path.write_text(_matrix(cells // stacks, versions), encoding="utf-8")
    return path


def _copy(real: Resolution, vllm: str, transformers: str) -> Resolution:
    """``real`` with other versions of two wheels."""
    pinned = {"vllm": vllm, "transformers": transformers}
    others = [one for one in real.requirements if one.partition("==")[0] not in pinned]
    requirements = sorted([*others, *(f"{name}=={pinned[name]}" for name in pinned)])
    return replace(
        real,
        name=f"vllm-{vllm}-transformers-{transformers}",
        requirements=tuple(requirements),
        wheels=tuple(_renamed(wheel, pinned.get(wheel.name)) for wheel in real.wheels),
    )


def _renamed(wheel: Wheel, version: str | None) -> Wheel:
    if version is None:
        return wheel
    name, _, *tags = wheel.filename.split("-")
    return replace(wheel, version=version, filename="-".join([name, version, *tags]))


def _matrix(flavors: int, versions: Sequence[str]) -> str:
    """The project's own matrix with other releases, and with flavors that extend gb10."""
    given = yaml.safe_load((ROOT / "matrix.yaml").read_text(encoding="utf-8"))
    names = [f"g{number}" for number in range(flavors)]
    given["flavors"]["gb10"]["requirements"].append("transformers=={transformers}")
    given["flavors"] |= {name: {"extends": "gb10", "env": {"NUMBER": name}} for name in names}
    given["tags"] = ["{flavor}-vllm{vllm}-{transformers}"]
    given["axes"] |= {"flavor": names, "transformers": list(versions)}
    newest = given["zip"][0]
    given["zip"] = [{axis: [newest[axis][-1]] * len(RELEASES) for axis in newest}]
    given["zip"][0]["vllm"] = list(RELEASES)
    of_newest = {"channel": "cu130", "vllm": RELEASES[-1]}
    own = [one for one in given["overrides"] if one["when"] == of_newest]
    given["overrides"] = [{**one, "when": {"channel": "cu130"}} for one in own]
    given |= {"include": [], "exclude": []}
    del given["defaults"]["flavor"]
    return yaml.safe_dump(given, sort_keys=False)


def planning(cells: int = CELLS, stacks: int = STACKS) -> Goal:
    """The CPU seconds of planning a matrix, from reading its files to the last build key."""
    with tempfile.TemporaryDirectory() as name:
        file = project(Path(name), cells, stacks)
        workspace = workspace_of(file)
        took: dict[str, float] = {}
        with _timed(took, "matrix"):
            matrix.load(file)
        with _timed(took, "lock"):
            store.read(workspace.lock)
        inputs = opening.read(workspace)
        expanded = inputs.matrix.cells
        with _timed(took, "plan"):
            found = stations.bases(expanded, [], inputs.lock)
            keys = {plan.build_key for plan in stations.plan(expanded, found, inputs)}
        one = expanded[-1].name
        whole = _command(file, "plan", "--json")
        check = _command(file, "plan", "--check")
        rendered = _command(file, "render", "--select", one)
    parts = ", ".join(f"{what} {seconds:.2f} s" for what, seconds in took.items())
    more = f"plan --check {check:.2f} s, render of one cell {rendered:.2f} s"
    result = f"{whole:.2f} s of CPU ({parts}; {more}), {len(keys):,} build keys"
    what = f"planning {len(expanded):,} cells with {len(inputs.lock.resolutions):,} resolutions"
    return Goal(what, result, GOAL, whole, " s")


@contextmanager
def _timed(took: dict[str, float], what: str) -> Iterator[None]:
    start = time.process_time()
    yield
    took[what] = time.process_time() - start


def _command(file: Path, *argv: str) -> float:
    """The CPU seconds of a whole command that finds no engine."""
    before = _of_children()
    env = {"PYTHONDONTWRITEBYTECODE": "", "DOCKER_HOST": f"unix://{file.parent}/no-engine"}
    whole = [sys.executable, "-m", "imagefactory", *argv, "--file", str(file)]
    done = shell.run(whole, env=env, quiet=True)
    if not done.ok:
        what = f"exit {done.code}: {done.err[-500:]}"
        raise fail(SetupError, "bench-step", what, fix="run it by hand")
    return _of_children() - before


def _of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def unchanged(cells: int, engine: Engine) -> Goal:
    """The seconds of a build of ``cells`` that are all unchanged."""
    with tempfile.TemporaryDirectory() as name:
        file = project(Path(name), cells // len(RELEASES))
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
    return Goal(
        f"`build --matrix` of {len(plans)} unchanged cells", result, UNCHANGED_GOAL, middle, " s"
    )


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
        ReceiptStore(folder=folder).save(one)


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
    parser.add_argument("--cells", type=int, default=CELLS)
    parser.add_argument("--stacks", type=int, default=STACKS)
    parser.add_argument("--unchanged", type=int, metavar="CELLS")
    options = parser.parse_args()

    def work() -> None:
        if options.unchanged:
            engine = Engine.connect(os.environ, from_environment(os.environ).state)
            goal = unchanged(options.unchanged, engine)
        else:
            goal = planning(options.cells, options.stacks)
        ui.line(f"{goal.what}: {goal.result}; {goal.verdict()}")

    command(work)


if __name__ == "__main__":
    main()
