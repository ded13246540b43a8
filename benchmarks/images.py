"""Measures what an image costs when imagefactory builds it, and with other build methods.

    python benchmarks/images.py [--select CELL] [--together CELLS] [--rival NAME] [--markdown PAGE]

All methods use the same locked wheels. A cold build starts without any cache: every method builds
the same base and downloads the same wheels from the same index, whose caches are warm. The rivals
are Dockerfiles with Docker's default settings (gzip layers); what pip caches stays in its image and
depends on the index. The rebuild follows a change of one line in a patched Python file. The
bytes pushed are those that a registry with the original image receives when the rebuilt image is
pushed. Ratios are relative to imagefactory in the same run; times depend on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import textwrap
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
    bake,
    command,
    files_of,
    machine,
    prune,
    registry,
    remove_images,
    run_exclusively,
    surplus,
    unpacked,
    wait_for_space,
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
#: Bytes of disk space per byte of the wheels' content, while an image is built, exported and pushed
#: to a local registry.
PEAK = 5
OTHER = {"linux/amd64": "linux/arm64", "linux/arm64": "linux/amd64"}
RIVALS = {"plain": "plain pip Dockerfile", "single": "single-layer image"}


@dataclass(frozen=True, kw_only=True)
class Bench:
    """One cell, prepared for every build method."""

    engine: Engine
    project: scratch.Project
    plan: CellPlan
    ours: Path
    rivals: Path

    @property
    def tag(self) -> str:
        """The reference of imagefactory's image."""
        return self.plan.cell.tag

    def retag(self) -> None:
        """Move the cell's tag to another image, so that the cell has to be built.

        The built image keeps another tag, as the engine deletes images without one.
        """
        self.engine.tag(f"{REPOSITORY}:basefs", self.tag)


def prepare(stack: ExitStack, engine: Engine, cells: Sequence[Cell]) -> Bench:
    """Copy the project, render the first of ``cells`` and write its rivals.

    Everything is removed when ``stack`` unwinds.
    """
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="imagefactory-bench-")))
    project = scratch.copy(folder, (cell.flavor.name for cell in cells))
    plans, found = project.plan(select(project.inputs.matrix.cells, [cells[0].name]), engine)
    ours = project.bakefile(plans, found, engine, "ours")
    theirs = rivals.write(folder / "rivals", plans[0], ours, project.settings, engine.platform)
    stack.callback(remove_images, engine)
    return Bench(engine=engine, project=project, plan=plans[0], ours=ours, rivals=theirs)


def content(bench: Bench, *, ours: bool) -> tuple[int, int]:
    """Download all wheels once; returns the bytes of the base's files and of the wheels' files."""
    if not ours:
        bake(bench.engine, bench.rivals, "warmup", cold=True)
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
    """Push the image ``tag``, change it and push it again; ``between`` runs before the change."""
    with registry(bench.engine) as store:
        store.push(bench.engine, tag, "first")
        first = files_of(bench.engine, tag)
        between()
        changed = change()
        pushed = store.push(bench.engine, tag, "changed")
        images: list[Files] = [first, files_of(bench.engine, tag)]
        sizes = [store.size("first"), store.size("changed")]
        return Cost(
            cold=cold,
            changed=changed,
            pushed=pushed,
            compressed=sizes[0],
            unpacked=first.total,
            surplus=surplus(store.stored(), sizes, images),
        )


def measure_ours(bench: Bench, report: Report) -> Cost:
    """Measure imagefactory: a cold bake, the overhead of `imagefactory build`, a changed patch."""
    name = bench.plan.cell.name
    layers = bench.project.layers(bench.plan)
    cold = layers + bake(bench.engine, bench.ours, name, cold=True)
    cell = [bench.plan.cell]

    def overhead() -> None:
        baked, built = [], []
        bench.engine.tag(bench.tag, f"{REPOSITORY}:kept")
        for _ in range(ROUNDS):
            bench.retag()
            baked.append(bake(bench.engine, bench.ours, name))
            bench.retag()
            built.append(bench.project.build(cell))
        plain, full = statistics.median(baked), statistics.median(built)
        extra = full - plain
        ratio = (cold + extra) / cold
        unchanged = statistics.median(bench.project.build(cell) for _ in range(ROUNDS))
        report.goals += [
            Goal(
                "cold `imagefactory build` / plain bake",
                f"{ratio:.3f} ({extra:+.1f} s on {cold:.0f} s)",
                1.05,
                ratio,
            ),
            Goal(
                "`imagefactory build`, all steps cached",
                f"{full:.1f} s, plain bake {plain:.1f} s (median of {ROUNDS})",
            ),
            Goal("`build --matrix`, unchanged", f"{unchanged:.1f} s (median of {ROUNDS})"),
        ]

    def change() -> float:
        bench.project.change(2)
        return bench.project.build(cell)

    return measure(bench, bench.tag, cold, change, overhead)


def measure_rival(bench: Bench, name: str) -> Cost:
    """Measure a rival: a cold build, then a rebuild with a changed file."""
    rivals.change(bench.rivals.parent, 1)
    cold = bake(bench.engine, bench.rivals, name, cold=True)

    def change() -> float:
        rivals.change(bench.rivals.parent, 2)
        return bake(bench.engine, bench.rivals, name)

    return measure(bench, f"{REPOSITORY}:{name}", cold, change)


def other_platform(bench: Bench, platform: Platform) -> Goal:
    """The time of the cell's own steps on its platform, relative to those on another platform."""
    cell = bench.plan.cell
    arch = platform.arch
    what = f"build steps for {cell.platform.arch} / for {arch}"
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
        reason = textwrap.shorten(error.problems[0].what, 45, placeholder=" …")
        return Goal(what, f"not measured: {reason}")
    own, theirs = seconds[cell.platform], seconds[platform]
    bound = 1.15 if cell.platform == Platform.ARM64 else None
    return Goal(what, f"{own / theirs:.2f} ({own:.0f} s, {theirs:.0f} s)", bound, own / theirs)


def _steps_of(bench: Bench, cell: Cell, plans: list[CellPlan], found: Bases) -> float:
    """The wall-clock seconds of a cell's own steps, with its base built and wheels downloaded."""
    known = bench.project.bakefile(plans, found, bench.engine, "also")
    bake(bench.engine, known, cell.name, keep=False)
    prune(bench.engine)
    for shared in json.loads(known.read_text(encoding="utf-8"))["target"]:
        if shared.startswith("builder-"):
            bake(bench.engine, known, shared, keep=False)
    uncached = BakeOptions(uncached="cells")
    file = bench.project.bakefile(plans, found, bench.engine, "also", uncached)
    plan = next(one for one in plans if one.cell.name == cell.name)
    try:
        return bench.project.layers(plan) + bake(bench.engine, file, cell.name)
    finally:
        remove_images(bench.engine)
        prune(bench.engine)


def together(bench: Bench, expressions: Sequence[str]) -> Goal:
    """All selected cells in one registry."""
    cells = select(bench.project.inputs.matrix.cells, expressions)
    if len(cells) < 2:
        what = "registry with several cells / distinct content"
        return Goal(what, "not measured: only one cell is selected")
    what = f"registry with {len(cells)} cells / distinct content"
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
    """The names of the build methods; pip runs on the image's own platform, emulated if needed."""
    emulated = ", emulated" if platform != native else ""
    return {"ours": "imagefactory", **RIVALS, "plain": RIVALS["plain"] + emulated}


def run(options: argparse.Namespace, stack: ExitStack) -> Report:
    """Measure everything, quick measurements first.

    The page is written after each step, so that an error does not lose an hour's results.
    """
    settings = from_environment(os.environ)
    engine = Engine.connect(os.environ, settings.state)
    run_exclusively(stack, settings.state / "bench.lock")
    remove_images(engine)
    real = matrix.load(ROOT / "matrix.yaml").cells
    selected, several = select(real, [options.select]), options.together or [options.select]
    facts = machine(engine)
    scale = [plan_scale.planning(), plan_scale.unchanged(100, engine)]
    bench = prepare(stack, engine, [*selected, *select(real, several)])
    cell, wheels = bench.plan.cell, bench.plan.resolution.wheels
    compressed = sum(wheel.size for wheel in wheels) / 1e9
    facts.append(("cell", f"{cell.name}: {len(wheels)} wheels, {compressed:.2f} GB"))
    wait_for_space(engine, disk.wheels_of([bench.plan]) * disk.ENGINE.peak)
    measured = () if options.ours else tuple(options.rival or RIVALS)
    base, files = content(bench, ours=not measured)
    facts.append(("content", f"base {base / 1e6:.0f} MB and wheels {files / 1e6:.0f} MB unpacked"))
    report = Report(facts=facts, titles=titles(cell.platform, engine.platform), floor=base + files)

    def clear() -> None:
        prune(engine, downloads=True)
        wait_for_space(engine, PEAK * files)

    clear()
    report.costs["ours"] = measure_ours(bench, report)
    report.goals += scale
    for name in measured:
        remove_images(engine)
        clear()
        report.costs[name] = measure_rival(bench, name)
    save(options, report)
    remove_images(engine)
    clear()
    report.goals.append(together(bench, several))
    save(options, report)
    clear()
    report.goals.append(other_platform(bench, Platform(options.also or OTHER[cell.platform])))
    save(options, report)
    return report


def save(options: argparse.Namespace, report: Report) -> None:
    """Write the page, if it was asked for."""
    if options.markdown:
        method = (__doc__ or "").split("\n\n", 2)[2]
        options.markdown.write_text(report.page(method, rerun(options)), encoding="utf-8")


def rerun(options: argparse.Namespace) -> str:
    """The command that repeats the measurement."""
    words = ["--ours"] * options.ours + [f"--rival {name}" for name in options.rival or ()]
    words += [f"--together '{cells}'" for cells in options.together or ()]
    page = options.markdown.name
    given = {
        "CELL": f"'{options.select}'" if options.select != "flavor=cpu" else "",
        "PAGE": f"docs/{page}" if page != "benchmarks.md" else "",
        "BENCH": f'"{" ".join(words)}"' if words else "",
    }
    return " ".join(["make bench", *(f"{name}={value}" for name, value in given.items() if value)])


def main() -> None:
    """Measure, print the tables, and with --markdown write them to a page as well."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--select", default="flavor=cpu", metavar="CELL", help="the cell (if several, the first)"
    )
    parser.add_argument(
        "--together",
        action="append",
        metavar="CELLS",
        help="cells to store in one registry; repeatable",
    )
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument(
        "--rival", action="append", choices=tuple(RIVALS), help="rival to measure; repeatable"
    )
    chosen.add_argument("--ours", action="store_true", help="measure no rivals")
    parser.add_argument(
        "--also",
        metavar="PLATFORM",
        help="second platform to build the cell for (default: the other one)",
    )
    parser.add_argument("--markdown", type=Path, metavar="PAGE", help="also write this page")
    options = parser.parse_args()

    def work() -> None:
        with ExitStack() as stack:
            report = run(options, stack)
        report.show()

    command(work)


if __name__ == "__main__":
    main()
