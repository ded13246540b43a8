"""Records of made-up nights, as many as a test or a benchmark asks for."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from imagefactory.nightly import record
from imagefactory.nightly.record import CellRecord, CellState, Failure, PatchRecord, Record
from imagefactory.nightly.values import State

FIRST = datetime(2025, 11, 23, 2, 17, tzinfo=UTC)
#: What a name or a log can contain in order to run in a reader's browser.
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'{{ 7 * 7 }}"
PATCHES = (
    "vllm/mtp-exclusion",
    "vllm/nvfp4-routing-sm121",
    "vllm/fp8-backend-sm121",
    "vllm/gpu-memory-utilization-gb",
    "flashinfer/e2m1-targets",
)


def cell(name: str = "gb10-vllm0.33.0", state: str = "pushed", **values: object) -> CellRecord:
    """A cell of whose image everything is known, unless ``values`` say otherwise."""
    known: dict[str, object] = {
        "digest": f"sha256:{'ab' * 32}",
        "build_key": "cd" * 32,
        "size": 12_100_000_000,
        "seconds": 1500.0,
        "versions": {"vllm": "0.33.0", "torch": "2.14.0"},
    }
    return CellRecord(name=name, state=CellState(state), **{**known, **values})  # type: ignore[arg-type]


def failure(**values: object) -> Failure:
    """A build that failed, unless ``values`` say otherwise."""
    known = {
        "where": "gb10-vllm0.33.0",
        "step": "build",
        "code": "build-failed",
        "what": "exit code 1",
        "excerpt": "#9 ERROR: no space left on device",
    }
    return Failure(**{**known, **values})  # type: ignore[arg-type]


def night(day: int, *cells: CellRecord, state: State | None = None, **values: object) -> Record:
    """The night that many days after the first."""
    broken = any(one.state is CellState.FAILED for one in cells)
    found = {"version": "0.9.0", "ended": FIRST + timedelta(days=day, minutes=40), **values}
    return Record(
        began=FIRST + timedelta(days=day),
        state=state or (State.BROKEN if broken else State.GREEN if cells else State.QUIET),
        cells=cells,
        **found,  # type: ignore[arg-type]
    )


def year(nights: int = 365, cells: int = 50, seed: int = 0) -> Iterator[Record]:
    """Nights as they happen: releases, rebuilds, failures that last, nothing new in some.

    In others, something is unknown.
    """
    drawn = random.Random(seed)  # noqa: S311 - no secret
    world = [_Cell(number, drawn) for number in range(cells)]
    for day in range(nights):
        quiet = drawn.random() < 0.3 and all(one.green for one in world)
        rows = () if quiet else tuple(one.night(day) for one in world)
        patches = tuple(
            PatchRecord(
                patch=name,
                version=release(day)
                if name.startswith("vllm")
                else f"0.{6 + day // 200}.{day // 40}",
                state=drawn.choice(("needed", "needed", "obsolete", "n/a", "conflict")),
            )
            for name in (PATCHES if day % 20 == 0 and not quiet else ())
        )
        took = timedelta(seconds=sum(one.seconds or 0 for one in rows) / 4 + 9)
        yield night(
            day,
            *rows,
            ended=FIRST + timedelta(days=day) + took,
            patches=patches,
            news=() if quiet or day % 20 else (f"vllm {release(day - 1)} -> {release(day)}",),
            tags=() if quiet else ("`nightly` is now gb10-00 (sha256:0123456789ab)",),
        )


def release(day: int) -> str:
    """The release of vLLM that is new on that day."""
    return f"0.{16 + day // 20}.0"


def write(folder: Path, records: Iterator[Record]) -> None:
    """Write the records as nights do."""
    for one in records:
        record.write(folder, one, Path("/nowhere/project"))


class _Cell:
    """A made-up cell, whose image changes now and then."""

    def __init__(self, number: int, drawn: random.Random) -> None:
        self.name, self.number, self.drawn = (
            f"gb10-{number:02d}-vllm-cu13{number % 3}",
            number,
            drawn,
        )
        self.key, self.size, self.left = "", 11e9 + number * 1e8, 0

    @property
    def green(self) -> bool:
        return self.left == 0

    def night(self, day: int) -> CellRecord:
        """What became of it."""
        drawn = self.drawn
        versions = {"vllm": release(day - self.number % 7), "torch": f"2.{10 + day // 90}.0"}
        versions |= {"cuda": "13.0", "python": "3.12"}
        self.left = max(self.left - 1, 0) or (drawn.randint(1, 5) if drawn.random() < 0.01 else 0)
        if self.left:
            state = "failed" if self.number % 3 else "stopped"
            log = "\n".join(f"#{line} {line}.0 compiling unit {line}" for line in range(12))
            broke = failure(where=self.name, excerpt=f"{log}\n#13 ERROR: exit code: 1")
            return cell(
                self.name,
                state,
                failures=(broke,) if state == "failed" else (),
                digest=None,
                size=None,
                seconds=drawn.uniform(60, 900) if state == "failed" else None,
                versions=versions,
            )
        builds = drawn.random() < 0.15 or not self.key
        if builds:
            self.key, self.size = (
                f"{drawn.getrandbits(256):064x}",
                self.size * drawn.uniform(0.99, 1.012),
            )
        return cell(
            self.name,
            "pushed" if builds else "unchanged",
            digest=f"sha256:{self.key}" if self.number != 7 else None,
            build_key=self.key,
            size=int(self.size) if self.number != 7 else None,
            seconds=drawn.uniform(300, 2400) if builds else None,
            versions=versions,
        )
