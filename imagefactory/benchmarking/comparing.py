"""Compares two results: faster, slower, or the same as far as their spread lets one see. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from imagefactory.benchmarking.metrics import METRICS, Metric, Spread, spread
from imagefactory.benchmarking.results import Result
from imagefactory.errors import InputError, Problem

#: Samples below which a spread says nothing.
FEWEST = 3
#: What must be equal in results that are compared.
SAME = "model_id", "prompt_tokens", "output_tokens"


class Verdict(StrEnum):
    """How the second result compares with the first."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    UNKNOWN = "too few samples"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure at one level, before and after."""

    concurrency: int
    metric: str
    unit: str
    before: Spread
    after: Spread
    percent: float | None
    verdict: Verdict

    def as_dict(self) -> dict[str, Any]:
        """The row as plain JSON values."""
        return asdict(self)


def compare(before: Result, after: Result) -> list[Row]:
    """The figures that both results have.

    Raises InputError for results of different loads, whose figures say nothing about each other.
    """
    unlike = [
        Problem(
            code="bench-unlike",
            what=f"{key} is {before.data.get(key)} in one and {after.data.get(key)} in the other",
            fix="measure both with the same model and the same lengths",
        )
        for key in SAME
        if before.data.get(key) != after.data.get(key)
    ]
    levels = [level for level in before.levels if level in after.levels]
    if not levels:
        what = "the two have no level of concurrency in common"
        unlike.append(Problem(code="bench-unlike", what=what, fix="measure with --concurrency 1"))
    if unlike:
        raise InputError(unlike)
    return [
        _row(level, metric, before.levels[level], after.levels[level])
        for level in levels
        for metric in METRICS
    ]


def _row(level: int, metric: Metric, first: Mapping[str, Any], second: Mapping[str, Any]) -> Row:
    before, after = spread(first, metric), spread(second, metric)
    return Row(
        concurrency=level,
        metric=metric.key,
        unit=metric.unit,
        before=before,
        after=after,
        percent=100 * (after.median / before.median - 1) if before.median else None,
        verdict=verdict(before, after, more_is_better=metric.more_is_better),
    )


def verdict(before: Spread, after: Spread, *, more_is_better: bool) -> Verdict:
    """Whether ``after`` is better: only if the two spreads do not overlap is there a difference."""
    if min(before.samples, after.samples) < FEWEST:
        return Verdict.UNKNOWN
    if before.low <= after.high and after.low <= before.high:
        return Verdict.SAME
    return Verdict.FASTER if (after.median > before.median) == more_is_better else Verdict.SLOWER
