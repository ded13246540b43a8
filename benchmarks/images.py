"""What an image costs, made by imagefactory and in the ways it is made elsewhere, from the same
locked wheels.

    python benchmarks/images.py [--select CELL] [--together CELLS] [--rival NAME] [--markdown PAGE]

Cold is from nothing: every way makes the same base anew, and downloads the same wheels from the
same index, which has been asked for all of them once before. Rivals are Dockerfiles with Docker's
own settings (gzip layers); what pip keeps of its downloads stays in its image, and depends on the
index. "Changed" is one line of one patched Python file. "Moved" are the bytes that a real registry,
which has the image, gets when the changed one is pushed. Ratios are to ours, in this one run;
seconds depend on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import plan_scale
import rivals
import scratch
from measure import (
    REPOSITORY,
    ROOT,
    Files,
    alone,
    bake,
    command,
    files_of,
    machine,
    prune,
    registry,
    remove_images,
    room,
    surplus,
    unpacked,
)
from report import Cost, Goal, Report

from imagefactory.building import disk
from imagefactory.building.bakefile import BakeOptions
from imagefactory.errors import FactoryError
from imagefactory.matrix import matrix
from imagefactory.matrix.cell import Cell
from imagefactory.matrix.select import select
from imagefactory.planning.cell_plan import CellPlan
from imagefactory.planning.planning import Bases
from imagefactory.settings import from_environment
from imagefactory.system.engine import Engine
from imagefactory.system.platforms import Platform

ROUNDS = 3
#: Bytes on disk, for each byte that the wheels hold, while an image is made, exported and pushed to
#: a local registry.
PEAK = 5
OTHER = {"linux/amd64": "linux/arm64", "linux/arm64": "linux/amd64"}
RIVALS = {"plain": "plain pip Dockerfile", "single": "single-layer image"}


@dataclass(frozen=True, kw_only=True)
class Bench:
    """One cell, ready to be made in every way."""

    engine: Engine
    project: scratch.Project
    plan: CellPlan
    ours: Path
    rivals: Path

    @property
    def tag(self) -> str:
        """The name of our image."""
        return self.plan.cell.tag

    def forget(self) -> None:
        """Give our image's name to another one.

        It keeps one of its own: the engine deletes layers without a name.
        """
        self.engine.tag(f"{REPOSITORY}:basefs", self.tag)


def prepare(stack: ExitStack, engine: Engine, cells: Sequence[Cell]) -> Bench:
    """Copy the project, render the first of ``cells`` and write its rivals.

    All of it goes when ``stack`` unwinds.
    """
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="imagefactory-bench-")))
    project = scratch.copy(folder, (cell.flavor.name for cell in cells))
    plans, found = project.plan(select(project.inputs.matrix.cells, [cells[0].name]), engine)
    ours = project.bakefile(plans, found, engine, "ours")
    theirs = rivals.write(folder / "rivals", plans[0], ours, project.settings, engine.platform)
    stack.callback(remove_images, engine)
    return Bench(engine=engine, project=project, plan=plans[0], ours=ours, rivals=theirs)


def content(bench: Bench, *, ours: bool) -> tuple[int, int]:
    """Download all wheels once.

    Bytes of the base's files, and of the files that the wheels hold.
    """
    if not ours:
        bake(bench.engine, bench.rivals, "asked", cold=True)
    bake(bench.engine, bench.rivals, "basefs")
    base = files_of(bench.engine, f"{REPOSITORY}:basefs")
    return base.total, unpacked(bench.plan, bench.project.settings)


def measure(
    bench: Bench,
    tag: str,
    cold: float,
    change: Callable[[], float],
    between: Callable[[], None] = lambda: None,
) -> Cost:
    """Push the image ``tag``, change it, push it again; ``between`` runs before the change."""
    with registry(bench.engine) as store:
        store.push(bench.engine, tag, "first")
        first = files_of(bench.engine, tag)
        between()
        changed = change()
        moved = store.push(bench.engine, tag, "changed")
        images: list[Files] = [first, files_of(bench.engine, tag)]
        sizes = [store.size("first"), store.size("changed")]
        return Cost(
            cold=cold,
            changed=changed,
            moved=moved,
            compressed=sizes[0],
            unpacked=first.total,
            surplus=surplus(store.stored(), sizes, images),
        )


def measure_ours(bench: Bench, report: Report) -> Cost:
    """Ours: cold as rendered; then what `imagefactory build` adds to the same bake.

    Then the changed patch.
    """
    name = bench.plan.cell.name
    cold = bake(bench.engine, bench.ours, name, cold=True)
    cell = [bench.plan.cell]

    def overhead() -> None:
        baked, built = [], []
        bench.engine.tag(bench.tag, f"{REPOSITORY}:kept")
        for _ in range(ROUNDS):
            bench.forget()
            baked.append(bake(bench.engine, bench.ours, name))
            bench.forget()
            built.append(bench.project.build(cell))
        by_hand, by_us = statistics.median(baked), statistics.median(built)
        extra = by_us - by_hand
        unchanged = statistics.median(bench.project.build(cell) for _ in range(ROUNDS))
        report.goals += [
            Goal(
                "`imagefactory build` over a hand-written bake of the same files, cold",
                f"{(cold + extra) / cold:.3f} ({extra:+.1f} s on {cold:.0f} s)",
                1.05,
                (cold + extra) / cold,
            ),
            Goal(
                "the same with every step cached",
                f"{by_us:.1f} s, by hand {by_hand:.1f} s (median of {ROUNDS})",
            ),
            Goal(
                "`build --matrix` with nothing changed", f"{unchanged:.1f} s (median of {ROUNDS})"
            ),
        ]

    def change() -> float:
        bench.project.change(2)
        return bench.project.build(cell)

    return measure(bench, bench.tag, cold, change, overhead)


def measure_rival(bench: Bench, name: str) -> Cost:
    """A rival: cold, then with another file to copy."""
    rivals.change(bench.rivals.parent, 1)
    cold = bake(bench.engine, bench.rivals, name, cold=True)

    def change() -> float:
        rivals.change(bench.rivals.parent, 2)
        return bake(bench.engine, bench.rivals, name)

    return measure(bench, f"{REPOSITORY}:{name}", cold, change)


def other_platform(bench: Bench, platform: Platform) -> Goal:
    """The steps of the cell itself, the base standing already.

    For another platform and for its own.
    """
    cell = bench.plan.cell
    what = f"steps of the cell for {cell.platform} over the same pins for {platform}"
    arch = platform.arch
    other = replace(
        cell,
        name=f"{cell.name}-also-{arch}",
        axes={**cell.axes, "platform": platform},
        tags=(f"{REPOSITORY}:also",),
    )
    try:
        bench.project.lock([*bench.project.inputs.matrix.cells, other])
        plans, found = bench.project.plan([cell, other], bench.engine)
        seconds = {one.platform: _steps_of(bench, one, plans, found) for one in (cell, other)}
    except FactoryError as error:
        return Goal(what, f"not measured: {error.problems[0].what}")
    own, theirs = seconds[cell.platform], seconds[platform]
    bound = 1.15 if cell.platform == Platform.ARM64 else None
    return Goal(what, f"{own / theirs:.2f} ({own:.0f} s, {theirs:.0f} s)", bound, own / theirs)


def _steps_of(bench: Bench, cell: Cell, plans: list[CellPlan], found: Bases) -> float:
    """The wall seconds of the steps of one cell, its base made and its wheels downloaded before."""
    known = bench.project.bakefile(plans, found, bench.engine, "also")
    bake(bench.engine, known, cell.name, keep=False)
    prune(bench.engine)
    for shared in json.loads(known.read_text(encoding="utf-8"))["target"]:
        if shared.startswith(("base-", "builder-")):
            bake(bench.engine, known, shared, keep=False)
    anew = bench.project.bakefile(plans, found, bench.engine, "also", BakeOptions(uncached="cells"))
    try:
        return bake(bench.engine, anew, cell.name)
    finally:
        remove_images(bench.engine)
        prune(bench.engine)


def together(bench: Bench, expressions: Sequence[str]) -> Goal:
    """All selected cells in one registry."""
    cells = select(bench.project.inputs.matrix.cells, expressions)
    what = f"registry bytes of {len(cells)} cells over their distinct content"
    if len(cells) < 2:
        return Goal(
            "registry bytes of several cells over their distinct content",
            "not measured: one cell is selected",
        )
    with registry(bench.engine) as store:
        images = []
        for number, cell in enumerate(cells):
            bench.project.build([cell])
            store.push(bench.engine, cell.tag, f"cell{number}")
            images.append(files_of(bench.engine, cell.tag))
            remove_images(bench.engine)
            prune(bench.engine, downloads=True)
        sizes = [store.size(f"cell{number}") for number in range(len(cells))]
        ratio = surplus(store.stored(), sizes, images)
        return Goal(what, f"{ratio:.3f} ({store.stored() / 1e9:.2f} GB stored)", 1.10, ratio)


def titles(platform: str, native: str) -> dict[str, str]:
    """What the ways of making the image are called.

    Pip runs on the image's own platform, whatever that costs.
    """
    emulated = ", emulated" if platform != native else ""
    return {"ours": "imagefactory", **RIVALS, "plain": RIVALS["plain"] + emulated}


def run(asked: argparse.Namespace, stack: ExitStack) -> Report:
    """Measure everything, the cheapest to be wrong first.

    The page is written as it grows, lest an hour be lost.
    """
    settings = from_environment(os.environ)
    engine = Engine.connect(os.environ, settings.state)
    alone(stack, settings.state / "bench.lock")
    remove_images(engine)
    real = matrix.load(ROOT / "matrix.yaml").cells
    selected, several = select(real, [asked.select]), asked.together or [asked.select]
    facts = machine(engine)
    scale = [plan_scale.planning(1000), plan_scale.unchanged(100, engine)]
    bench = prepare(stack, engine, [*selected, *select(real, several)])
    cell, wheels = bench.plan.cell, bench.plan.resolution.wheels
    facts.append(
        (
            "cell",
            (
                f"{cell.name}: {len(wheels)} wheels, "
                f"{sum(wheel.size for wheel in wheels) / 1e9:.2f} GB"
            ),
        )
    )
    room(engine, disk.wheels_of([bench.plan]) * disk.PEAK)
    measured = () if asked.ours else tuple(asked.rival or RIVALS)
    base, held = content(bench, ours=not measured)
    facts.append(("content", f"base {base / 1e6:.0f} MB and wheels {held / 1e6:.0f} MB unpacked"))
    report = Report(facts=facts, titles=titles(cell.platform, engine.platform), floor=base + held)

    def clear() -> None:
        prune(engine, downloads=True)
        room(engine, PEAK * held)

    clear()
    report.costs["ours"] = measure_ours(bench, report)
    report.goals += scale
    for name in measured:
        remove_images(engine)
        clear()
        report.costs[name] = measure_rival(bench, name)
    keep(asked, report)
    remove_images(engine)
    clear()
    report.goals.append(together(bench, several))
    keep(asked, report)
    clear()
    report.goals.append(other_platform(bench, Platform(asked.also or OTHER[cell.platform])))
    keep(asked, report)
    return report


def keep(asked: argparse.Namespace, report: Report) -> None:
    """Write the page, if one is asked for."""
    if asked.markdown:
        asked.markdown.write_text(
            report.page((__doc__ or "").split("\n\n", 2)[2], again(asked)), encoding="utf-8"
        )


def again(asked: argparse.Namespace) -> str:
    """The command that measures the same once more."""
    options = ["--ours"] * asked.ours + [f"--rival {name}" for name in asked.rival or ()]
    options += [f"--together '{cells}'" for cells in asked.together or ()]
    given = {
        "CELL": f"'{asked.select}'" if asked.select != "flavor=cpu" else "",
        "PAGE": f"docs/{asked.markdown.name}" if asked.markdown.name != "benchmarks.md" else "",
        "BENCH": f'"{" ".join(options)}"' if options else "",
    }
    return " ".join(["make bench", *(f"{name}={value}" for name, value in given.items() if value)])


def main() -> None:
    """Measure, then print the tables; or write them as a page too."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--select", default="flavor=cpu", metavar="CELL", help="the cell; the first of several"
    )
    parser.add_argument(
        "--together",
        action="append",
        metavar="CELLS",
        help="cells that share a registry; repeatable",
    )
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument(
        "--rival", action="append", choices=tuple(RIVALS), help="measure this rival; repeatable"
    )
    chosen.add_argument("--ours", action="store_true", help="leave the rivals out")
    parser.add_argument(
        "--also",
        metavar="PLATFORM",
        help="a platform to make the same cell for (default: the other)",
    )
    parser.add_argument("--markdown", type=Path, metavar="PAGE")
    asked = parser.parse_args()

    def work() -> None:
        with ExitStack() as stack:
            report = run(asked, stack)
        report.show()

    command(work)


if __name__ == "__main__":
    main()
