"""How long builds took, kept below the state folder, and the estimates made from that."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from imagefactory.system import files

#: Durations that are kept for each kind of build, the newest last.
KEPT = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Took:
    """How long one build took.

    Attributes:
        what: what was built, such as a flavor; builds of one kind take about the same time.
        warm: whether most steps came from the cache.
        seconds: wall time from its first step to its last.
    """

    what: str
    warm: bool
    seconds: float


class Timings:
    """The durations of finished builds in a JSON file: ``{"gb10": {"cold": [410.2], ...}}``.

    A file that is missing or not readable is empty, and one that cannot be written stays as it is:
    an estimate is no reason to fail.
    """

    def __init__(self, state: Path) -> None:
        self._file = state / "timings.json"
        self._known = _read(self._file)

    def estimate(self, what: str, *, warm: bool) -> float | None:
        """Seconds that such a build takes: the median of the last ones; None without any."""
        seconds = self._known.get(what, {}).get(_kind(warm))
        return statistics.median(seconds) if seconds else None

    def add(self, builds: Iterable[Took]) -> None:
        """Keep how long ``builds`` took, beside what another process has written meanwhile."""
        new = list(builds)
        if not new:
            return
        self._known = _read(self._file)
        for took in new:
            seconds = self._known.setdefault(took.what, {}).setdefault(_kind(took.warm), [])
            seconds.append(round(took.seconds, 1))
            del seconds[:-KEPT]
        try:
            self._write()
        except OSError:
            return

    def _write(self) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        files.write_text(self._file, json.dumps(self._known, indent=1, sort_keys=True))


def _kind(warm: bool) -> str:
    return "warm" if warm else "cold"


def _read(file: Path) -> dict[str, dict[str, list[float]]]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    kinds = found.items() if isinstance(found, dict) else ()
    return {
        what: {kind: _numbers(by_kind[kind]) for kind in ("cold", "warm") if kind in by_kind}
        for what, by_kind in kinds
        if isinstance(by_kind, dict)
    }


def _numbers(value: object) -> list[float]:
    values = value if isinstance(value, list) else []
    good = (one for one in values if isinstance(one, int | float) and math.isfinite(one))
    return [float(one) for one in good if one >= 0]
