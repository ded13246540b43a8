"""Measures how long the dashboard of many nights takes: to write it, and to open it in Chromium.

    PYTHONPATH=tests python benchmarks/dashboard.py [--nights N] [--cells N]

Without Chromium, only the writing is measured.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from report import Goal
from support import chromium, recorded

from imagefactory.nightly import nightly
from imagefactory.system import shell, ui
from imagefactory.workspace import find

#: Seconds, and how often each is measured.
GOAL, ROUNDS = 1.0, 3
PAGES = "index.html", "cells.html", "compare.html"
LOADED = "performance.getEntriesByType('navigation')[0].loadEventEnd"


def written(folder: Path, nights: int, cells: int) -> Goal:
    """The processor seconds of ``imagefactory dashboard``, with the start of Python."""
    environ = {f"XDG_{name}_HOME": str(folder / name.lower()) for name in ("STATE", "CACHE")}
    matrix = folder / "sparks" / "matrix.yaml"
    matrix.parent.mkdir()
    workspace = find(matrix, {**os.environ, **environ})
    recorded.write(nightly.folder_of(workspace) / "records", recorded.year(nights, cells))
    argv = [sys.executable, "-m", "imagefactory", "dashboard", "-f", str(matrix)]
    seconds = sorted(_processor(argv, folder / "site", environ) for _ in range(ROUNDS))
    size = sum(path.stat().st_size for path in (folder / "site").glob("*.html"))
    result = f"{seconds[0]:.2f} s (best of {ROUNDS}, worst {seconds[-1]:.2f}), {size / 1e6:.1f} MB"
    return Goal(f"writing {nights} nights of {cells} cells", result, GOAL, seconds[0], " s")


def _processor(argv: list[str], out: Path, environ: dict[str, str]) -> float:
    before = os.times()
    done = shell.run([*argv, "-o", str(out)], env=environ, quiet=True)
    after = os.times()
    assert done.ok, done.err  # noqa: S101 - a benchmark of what fails means nothing
    return sum(after[2:4]) - sum(before[2:4])


def opened(program: str, folder: Path) -> list[Goal]:
    """The seconds until each page is loaded, in a browser that runs."""
    goals = []
    pages = [*PAGES, max(path.name for path in (folder / "site").glob("nights-*.html"))]
    with chromium.browser(program, folder / "profile") as browser:
        browser.look(width=1400, height=1000)
        for page in pages:
            seconds = []
            for _ in range(ROUNDS):
                browser.open(folder / "site" / page)
                time.sleep(0.5)
                seconds.append(browser.value(LOADED) / 1000)
            result = f"{min(seconds):.2f} s (best of {ROUNDS}, worst {max(seconds):.2f})"
            goals.append(Goal(f"opening {page}", result, GOAL, min(seconds), " s"))
    return goals


def main() -> None:
    """Measure, and print the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nights", type=int, default=365)
    parser.add_argument("--cells", type=int, default=50)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        goals = [written(Path(name), options.nights, options.cells)]
        program = chromium.find()
        goals += opened(program, Path(name)) if program else []
    for goal in goals:
        ui.line(f"{goal.what}: {goal.result}; {goal.verdict()}")
    if not program:
        ui.warn("there is no Chromium: how long the pages take to open was not measured")


if __name__ == "__main__":
    main()
