"""Measures how much disk a cold build takes at its peak, and its time relative to its limits.

    python benchmarks/disk.py [--select CELL] [--markdown PAGE]

The build cache is emptied and the base built; then `imagefactory build` makes one cell. Meanwhile
the free space of the file system is read five times a second: what it loses includes the archives
of the wheels, the layers made from them, the build cache, and the image. Nothing else may write
there. Both limits are measured in the same run. Whatever is built has to be unpacked and compressed
once, which is all that a folder or a registry needs: uv unpacks the same wheels from the same index
into one folder, with an empty cache, and zstd compresses that folder. An engine also receives and
unpacks the layers: its limit is this and the time that `docker load` takes for the finished image.
A build into the engine is compared with both limits.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import textwrap
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import scratch
import uv
from measure import (
    ROOT,
    bake,
    clock,
    command,
    files_of,
    machine,
    must,
    prune,
    remove_images,
    run_exclusively,
    show,
    wait_for_space,
)
from report import WIDTH, Goal, amount

from imagefactory.building import disk, layouts
from imagefactory.building.stack import stack
from imagefactory.errors import SetupError, fail
from imagefactory.locking.requirements import requirements_txt
from imagefactory.locking.tags import uv_platform
from imagefactory.matrix import matrix
from imagefactory.matrix.select import select
from imagefactory.planning.cell_plan import CellPlan
from imagefactory.settings import Settings, from_environment
from imagefactory.system import ui
from imagefactory.system.engine import Engine

PEAK_GOAL, TIME_GOAL = 2.2, 1.5
OUTPUTS = {"engine": "into the engine", "folder": "into a folder"}
COLUMNS = ["measure", "result", "goal"]
#: Seconds between two looks at the free space, and until what was removed before is free.
SECONDS, SETTLE = 0.2, 5.0


class Sampler:
    """Watches how much free space the file system of ``folder`` loses.

    Reading the sizes of all files once a second took a fifth of the time of a build.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._stop = folder, threading.Event()
        self._before = self._free()
        self.peak = 0
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def now(self) -> int:
        """Bytes that are taken in addition at this moment."""
        return self._before - self._free()

    def _free(self) -> int:
        found = os.statvfs(self._folder)
        return found.f_bfree * found.f_frsize

    def _watch(self) -> None:
        while not self._stop.wait(SECONDS):
            self.peak = max(self.peak, self.now)


@dataclass(frozen=True, kw_only=True)
class Limit:
    """The least that a build has to do: seconds to unpack the wheels and to compress them once."""

    unpack: float
    compress: float

    @property
    def seconds(self) -> float:
        """Both, one after the other."""
        return self.unpack + self.compress


@dataclass(frozen=True, kw_only=True)
class Cold:
    """A cold build: seconds of the base and of the cell, bytes at the peak and afterwards.

    ``load`` is the seconds that the engine takes to load the image from a folder.
    """

    base: float
    cell: float
    peak: int
    kept: int
    load: float = 0.0


def limit(plan: CellPlan, settings: Settings) -> Limit:
    """Unpack and compress the wheels of ``plan``, by hand."""
    with tempfile.TemporaryDirectory(prefix="imagefactory-bench-") as name:
        folder = Path(name)
        wheels = [*plan.resolution.wheels, *(plan.toolchain.wheels if plan.toolchain else ())]
        (folder / "list.txt").write_text(requirements_txt(wheels), encoding="utf-8")
        argv = [uv.find_uv_bin(), "pip", "install", "--no-deps", "--only-binary", ":all:"]
        argv += ["--require-hashes", "--index-strategy", "unsafe-best-match", "--quiet"]
        argv += ["--python-version", plan.cell.python, "--link-mode", "hardlink"]
        argv += ["--python-platform", uv_platform(plan.cell.platform, plan.cell.flavor.base.glibc)]
        argv += ["--cache-dir", str(folder / "cache"), "--target", str(folder / "tree")]
        argv += [word for where in settings.find_links for word in ("--find-links", str(where))]
        env = {
            **os.environ,
            "UV_DEFAULT_INDEX": settings.indexes[0],
            "UV_INDEX": " ".join(settings.indexes[1:]),
        }
        unpack = clock(lambda: must([*argv, "-r", str(folder / "list.txt")], env=env))
        shutil.rmtree(folder / "cache")
        archive = str(folder / "tree.tar.zst")
        tar = ["tar", "-I", "zstd -1 -T0", "-C", str(folder / "tree"), "-cf", archive, "."]
        return Limit(unpack=unpack, compress=clock(lambda: must(tar)))


def cold(project: scratch.Project, plan: CellPlan, engine: Engine, output: str) -> Cold:
    """Build ``plan`` without caches: the base first, then the cell."""
    plans, found = project.plan([plan.cell], engine)
    file = project.bakefile(plans, found, engine, "base")
    targets = json.loads(file.read_text(encoding="utf-8"))["target"]
    shutil.rmtree(file.parent / stack.LAYOUTS)
    project.forget()
    remove_images(engine)
    prune(engine, downloads=True)
    with ExitStack() as opened:
        folder = opened.enter_context(
            tempfile.TemporaryDirectory(dir=Path(engine.data_root).parent)
        )
        os.sync()
        time.sleep(SETTLE)
        watch = opened.enter_context(Sampler(Path(folder)))
        base = clock(
            lambda: [
                bake(engine, file, name, keep=False) for name in targets if name != plan.cell.name
            ]
        )
        words = ("--output", folder) if output == "folder" else ()
        cell = project.build([plan.cell], *words)
        kept, peak = watch.now, watch.peak
        made = layouts.folder_of(Path(folder), plan.cell)
        load = clock(lambda: engine.load(made)) if output == "folder" else 0.0
    return Cold(base=base, cell=cell, peak=peak, kept=kept, load=load)


def goals(name: str, built: Cold, least: Limit, image: int) -> list[Goal]:
    """What a build took, relative to the unpacked image and to what any build has to do."""
    peak, ratio = built.peak / image, built.cell / least.seconds
    return [
        Goal(
            f"{name}: peak on the disk / unpacked image",
            f"{peak:.2f} ({amount(built.peak)}; {amount(built.kept)} afterwards)",
            PEAK_GOAL,
            peak,
        ),
        Goal(
            f"{name}: cold build beyond the base / (unpack + compress)",
            f"{ratio:.2f} ({built.cell:.1f} s; base {built.base:.1f} s)",
            TIME_GOAL,
            ratio,
        ),
    ]


def with_load(cell: float, load: float, least: Limit) -> Goal:
    """A build into the engine, relative to its limit, which includes what the engine does."""
    ratio = cell / (least.seconds + load)
    return Goal(
        f"{OUTPUTS['engine']}: cold build beyond the base / (unpack + compress + `docker load`)",
        f"{ratio:.2f}",
        TIME_GOAL,
        ratio,
    )


def run(options: argparse.Namespace, opened: ExitStack) -> None:
    """Measure, show the results, and write the page if it was asked for."""
    settings = from_environment(os.environ)
    engine = Engine.connect(os.environ, settings.state)
    run_exclusively(opened, settings.state / "bench.lock")
    facts = machine(engine)
    declared = matrix.load(ROOT / "matrix.yaml")
    present = engine.names(declared.repository)
    if present:  # they have the layers that are to be measured
        fix = f"remove them: docker image rm {' '.join(sorted(present))}"
        raise fail(SetupError, "bench-images", "the engine has images of the project", fix=fix)
    devices = {Path(path).stat().st_dev for path in (engine.data_root, tempfile.gettempdir())}
    if len(devices) > 1:
        what = f"{engine.data_root} and {tempfile.gettempdir()} are on two file systems"
        raise fail(SetupError, "bench-disks", what, fix="set TMPDIR to a folder beside the first")
    (cell, *_) = select(declared.cells, [options.select])
    folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="imagefactory-bench-")))
    project = scratch.copy(folder, [cell.flavor.name])
    (plan,), _ = project.plan(select(project.inputs.matrix.cells, [cell.name]), engine)
    opened.callback(remove_images, engine)
    opened.callback(prune, engine, downloads=True)
    wait_for_space(engine, disk.wheels_of([plan]) * disk.ENGINE.peak)
    least = limit(plan, settings)
    measured: list[Goal] = []
    image, built = 0, dict[str, Cold]()
    for output, title in OUTPUTS.items():
        built[output] = cold(project, plan, engine, output)
        image = image or files_of(engine, plan.cell.tag).total
        remove_images(engine)
        measured += goals(title, built[output], least, image)
    measured.insert(2, with_load(built["engine"].cell, built["folder"].load, least))
    facts += [
        ("cell", f"{cell.name}: {len(plan.resolution.wheels)} wheels, {amount(image)} unpacked"),
        ("limit of a folder", f"unpack {least.unpack:.1f} s + compress {least.compress:.1f} s"),
        ("limit of the engine", f"that + `docker load` {built['folder'].load:.1f} s"),
    ]
    rows = [[one.what, one.result, one.verdict()] for one in measured]
    show(facts)
    ui.table("disk and time", COLUMNS, [list(row) for row in rows])
    if options.markdown:
        options.markdown.write_text(page(facts, rows), encoding="utf-8")


def page(facts: list[tuple[str, str]], rows: list[list[str]]) -> str:
    """The results as a Markdown page."""
    method = " ".join((__doc__ or "").split("\n\n", 2)[2].split())
    lines = ["<!-- generated by benchmarks/disk.py; do not edit -->"]
    lines += ["# Disk space and time of a cold build", "", textwrap.fill(method, WIDTH), ""]
    lines += [f"- {name}: {value}" for name, value in facts]
    lines += ["", f"| {' | '.join(COLUMNS)} |", "| --- | --- | --- |"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([*lines, "", "To repeat the measurement:", "", "    make bench-disk", ""])


def main() -> None:
    """Measure, print the table, and with --markdown write it to a page as well."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--select", default="flavor=cpu", metavar="CELL", help="the cell (if several, the first)"
    )
    parser.add_argument("--markdown", type=Path, metavar="PAGE", help="also write this page")
    options = parser.parse_args()

    def work() -> None:
        with ExitStack() as opened:
            run(options, opened)

    command(work)


if __name__ == "__main__":
    main()
