"""The geometry of plots, as SVG paths on a time axis. Pure.

An unknown value is a gap, not a zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import TypeVar

#: Units of a plot; the page stretches it.
WIDTH, HEIGHT = 360, 60
T = TypeVar("T")
Scale = Callable[[T], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A line or bars.

    Attributes:
        path: of the line, or of all bars.
        least: the smallest known value.
        most: the largest; None if no value is known.
        first: day at the left edge.
        last: day at the right edge.
        latest: the last known value.
    """

    path: str
    least: float
    most: float | None
    first: date
    last: date
    latest: float = 0


def line(days: Sequence[date], values: Sequence[float | None]) -> Plot:
    """A line in steps: a value stands until the next one. Its axis ends at its own extremes."""
    known = [value for value in values if value is not None]
    least, most = (min(known), max(known)) if known else (0, None)
    x, y = _x(days), _y(least, most if most is not None else 0)
    parts = list[str]()
    run = list[tuple[date, float]]()
    for day, value in [*zip(days, values, strict=True), (days[-1], None)]:
        if value is not None:
            run.append((day, value))
        elif run:
            parts.append(_steps(run, x, y))
            run = []
    return Plot(
        path="".join(parts),
        least=least,
        most=most,
        first=days[0],
        last=days[-1],
        latest=known[-1] if known else 0,
    )


def bars(days: Sequence[date], values: Sequence[float | None], most: float = 0) -> Plot:
    """Bars from zero up to ``most``, or to the largest value."""
    known = [value for value in values if value is not None]
    top = max([most, *known])
    x, y = _x(days), _y(0, top)
    drawn = [
        f"M{x(day):.1f} {HEIGHT}V{y(value):.1f}"
        for day, value in zip(days, values, strict=True)
        if value
    ]
    return Plot(
        path="".join(drawn),
        least=min(known, default=0),
        most=top if known else None,
        first=days[0],
        last=days[-1],
        latest=known[-1] if known else 0,
    )


def _steps(run: Sequence[tuple[date, float]], x: Scale[date], y: Scale[float]) -> str:
    """A path; points between equal neighbours are left out. A single value is a short line."""
    (day, value), *others = run
    parts = [f"M{x(day) - 1:.1f} {y(value):.1f}"]
    for day, new in others:
        if new != value:
            parts.append(f"H{x(day):.1f}V{y(new):.1f}")
            value = new
    return "".join([*parts, f"H{x(day) + 1:.1f}"])


def _x(days: Sequence[date]) -> Scale[date]:
    length = max((days[-1] - days[0]).days, 1)
    return lambda day: 2 + (day - days[0]).days * (WIDTH - 4) / length


def _y(least: float, most: float) -> Scale[float]:
    span = most - least
    # equal values are a line in the middle
    return lambda value: HEIGHT - 3 - (HEIGHT - 6) * ((value - least) / span if span else 0.5)
