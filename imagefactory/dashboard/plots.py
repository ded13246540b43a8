"""The geometry of plots, as SVG paths on a time axis. Pure.

An unknown value is a gap, not a zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date

#: Units of a plot; the page stretches it.
WIDTH, HEIGHT = 360, 60


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
        marks: where single values stand that have no neighbour to draw a line to.
    """

    path: str
    least: float
    most: float | None
    first: date
    last: date
    latest: float = 0
    marks: tuple[tuple[float, float], ...] = ()


def line(days: Sequence[date], values: Sequence[float | None]) -> Plot:
    """A line in steps: a value stands until the next one. Its axis ends at its own extremes."""
    known = [value for value in values if value is not None]
    least, most = (min(known), max(known)) if known else (0, None)
    x, y = _x(days), _y(least, most if most is not None else 0)
    parts, marks = list[str](), list[tuple[float, float]]()
    run = list[tuple[float, float]]()
    for day, value in [*zip(days, values, strict=True), (days[-1], None)]:
        if value is not None:
            run.append((x(day), y(value)))
        elif run:
            parts.append(_steps(run))
            marks += run if len(run) == 1 else []
            run = []
    return Plot(
        path="".join(parts),
        least=least,
        most=most,
        first=days[0],
        last=days[-1],
        latest=known[-1] if known else 0,
        marks=tuple(marks),
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


def _steps(run: Sequence[tuple[float, float]]) -> str:
    """A path; points between equal neighbours are left out."""
    (x, y), text = run[0], f"M{run[0][0]:.1f} {run[0][1]:.1f}"
    for x, new in run[1:]:
        if new != y:
            text += f"H{x:.1f}V{new:.1f}"
            y = new
    return f"{text}H{x:.1f}"


def _x(days: Sequence[date]) -> Callable[[date], float]:
    length = max((days[-1] - days[0]).days, 1)
    return lambda day: 2 + (day - days[0]).days * (WIDTH - 4) / length


def _y(least: float, most: float) -> Callable[[float], float]:
    span = most - least
    # equal values are a line in the middle
    return lambda value: HEIGHT - 3 - (HEIGHT - 6) * ((value - least) / span if span else 0.5)
