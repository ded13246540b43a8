"""Three weeks of the simulated year, in which six things go wrong on purpose, from a record.

    python benchmarks/simulated_weeks.py [--record FILE]

From 25 July 2026 on a project has vLLM 0.26.0. On 10 and 11 August 0.27.0 and 0.27.1 are released,
which need another torch, and move what a patch changes. `--record` asks PyPI instead of
the record, and writes a new one.
"""

from __future__ import annotations

import argparse
import errno
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import past_index
from past_index import Upstream
from simulated_person import AFTER, ROOT
from simulated_year import Begin, Seen, Year, moment, opened

from imagefactory.errors import SetupError, fail
from imagefactory.locking import store
from imagefactory.system import ui

RECORD = ROOT / "tests/data/simulated-weeks.json.xz"
FIRST = date(2026, 7, 26)
BEGIN = Begin(
    row={"vllm": "0.26.0", "torch": "2.11.0", "flashinfer": "0.6.14", "uv": "0.11.31"},
    target=AFTER,
)
#: Its newest release before the window is withdrawn; nothing pins it to one version.
YANKED = "nvidia-cudnn-frontend"
RELEASES = ("0.27.0", "0.27.1")


@dataclass
class BadTorch:
    """PyPI with CPU builds of one release of torch, which its metadata does not show."""

    real: Upstream
    version: str = ""

    def files(self, project: str) -> list[past_index.File] | None:
        """As PyPI has them."""
        found = self.real.files(project)
        return None if found is None else list(found)

    def member(self, url: str, kind: str) -> str:
        """As PyPI has it, but for the bad release."""
        text = self.real.member(url, kind)
        if kind == "torch" and self.version and f"/torch-{self.version}" in url:
            return f"__version__ = '{self.version}+cpu'\ncuda = None\n"
        return text


def nights(upstream: Upstream, folder: Path) -> Iterator[tuple[str, Seen, Year]]:
    """The nights, each with what goes wrong in it."""
    torch = BadTorch(upstream)
    with opened(torch, folder, FIRST, BEGIN) as year:

        def night(day: date, wrong: str = "") -> tuple[str, Seen, Year]:
            return wrong, year.night(moment(day)), year

        yield night(FIRST)
        year.index.down = True
        yield night(date(2026, 7, 27), "index outage")
        year.index.down = False
        yield night(date(2026, 7, 28))
        lock = store.read(year.person.workspace.lock)
        year.index.yanked = {(w.name, w.version) for w in lock.all_wheels() if w.name == YANKED}
        yield night(date(2026, 7, 29), "yanked wheel")
        yield night(date(2026, 7, 30))
        torch.version = "2.13.0"
        yield night(date(2026, 8, 11), "bad torch")
        torch.version = ""
        year.fails["build"] = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        yield night(date(2026, 8, 12), "drift, full disk")
        del year.fails["build"]
        what = "the connection was cut off in a layer"
        year.fails["push"] = fail(SetupError, "registry-failed", what, fix="try again later")
        yield night(date(2026, 8, 13), "registry dies")
        del year.fails["push"]
        yield night(date(2026, 8, 14))


def main() -> None:
    """Replay the weeks, and say how each night ended."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", type=Path)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = options.folder or Path(name)
        pypi = past_index.Pypi(folder / "pypi")
        for wrong, seen, year in nights(
            pypi if options.record else past_index.load(RECORD), folder
        ):
            ui.line(
                f"{seen.day} {wrong or '-'}: {seen.state}, nightly is {year.tag}, {seen.cpu:.0f} s"
            )
            for line in (*seen.news, *seen.did, *seen.broken, *seen.hands, *seen.wrong):
                ui.line(f"    {line}")
        if options.record:
            past_index.record(pypi, year.index.now).save(options.record)


if __name__ == "__main__":
    main()
