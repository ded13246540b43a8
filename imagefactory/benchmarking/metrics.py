"""The figures of a level of concurrency, named as ``vllm bench serve`` names them. Pure.

Where that program has no name, since it measures once what is repeated here, names follow its
pattern: ``median_output_throughput`` is the median of the rounds' ``output_throughput``.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from imagefactory.benchmarking.trace import Round, Trace

#: The ends of the spread that is shown and compared.
LOW, HIGH = 10, 90
PERCENTILES = (LOW, 50, HIGH, 99)
#: Seconds between two parts of an answer below which they were sent together: no model makes ten
#: thousand tokens a second for one user.
TOGETHER = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A figure with a spread.

    Attributes:
        key: how keys of it end, as in ``median_ttft_ms``.
        title: what people call it.
        per: what there is one sample of: a ``request``, a ``token`` or a ``round``.
        unit: its unit.
        more_is_better: whether a larger value is.
    """

    key: str
    title: str
    per: str
    unit: str
    more_is_better: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A median and the percentiles ``LOW`` and ``HIGH``."""

    median: float
    low: float
    high: float
    samples: int


METRICS = (
    Metric(
        key="prefill_throughput",
        title="prefill",
        per="request",
        unit="tokens/s",
        more_is_better=True,
    ),
    Metric(
        key="decode_throughput", title="decode", per="request", unit="tokens/s", more_is_better=True
    ),
    Metric(key="ttft_ms", title="TTFT", per="request", unit="ms", more_is_better=False),
    Metric(key="tpot_ms", title="TPOT", per="request", unit="ms", more_is_better=False),
    Metric(key="itl_ms", title="ITL", per="token", unit="ms", more_is_better=False),
    Metric(key="e2el_ms", title="E2EL", per="request", unit="ms", more_is_better=False),
    Metric(
        key="output_throughput", title="output", per="round", unit="tokens/s", more_is_better=True
    ),
)


def percentile(samples: Sequence[float], percent: float) -> float:
    """The percentile, interpolated linearly between samples as NumPy does it by default.

    It is 0 of no samples, which is what ``vllm bench serve`` writes.
    """
    if not samples:
        return 0.0
    ordered = sorted(samples)
    position = (len(ordered) - 1) * percent / 100
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def summary(rounds: Sequence[Round], *, concurrency: int, model: str) -> dict[str, Any]:
    """The result of one level in the shape of what ``vllm bench serve --save-result`` writes."""
    traces = [trace for one in rounds for trace in one.traces]
    good = [trace for trace in traces if trace.ok]
    duration = sum(one.duration for one in rounds)
    inputs = sum(trace.prompt_tokens for trace in good)
    outputs = sum(trace.output_tokens for trace in good)
    return {
        "endpoint_type": "openai",
        "backend": "openai",
        "model_id": model,
        "num_prompts": len(traces),
        "request_rate": "inf",
        "max_concurrency": concurrency,
        "rounds": len(rounds),
        "in_bursts": in_bursts(rounds),
        "duration": duration,
        "completed": len(good),
        "failed": len(traces) - len(good),
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "request_throughput": _rate(len(good), duration),
        "output_throughput": _rate(outputs, duration),
        "total_token_throughput": _rate(inputs + outputs, duration),
        **_spreads(samples(rounds)),
        "input_lens": [trace.prompt_tokens for trace in traces],
        "output_lens": [trace.output_tokens for trace in traces],
        "ttfts": [trace.ttft if trace.ok else 0.0 for trace in traces],
        "itls": [list(trace.itls) for trace in traces],
        "latencies": [trace.e2el if trace.ok else 0.0 for trace in traces],
        "errors": [trace.error for trace in traces],
    }


def in_bursts(rounds: Sequence[Round]) -> bool:
    """Whether most parts of answers were not sent when they were made, but several together.

    Figures from the times between them would say how fast the client reads.
    """
    itls = [itl for one in rounds for trace in one.good for itl in trace.itls]
    return sum(itl < TOGETHER for itl in itls) > len(itls) / 2


def samples(rounds: Sequence[Round]) -> Mapping[str, Sequence[float]]:
    """The samples of each of ``METRICS``, by key; there are none of what cannot be known."""
    good = [trace for one in rounds for trace in one.good]
    timed = () if in_bursts(rounds) else good
    return {
        "prefill_throughput": _known(trace.prefill_throughput for trace in good),
        "decode_throughput": _known(trace.decode_throughput for trace in timed),
        "ttft_ms": _ms(trace.ttft for trace in good),
        "tpot_ms": _ms(trace.tpot for trace in timed),
        "itl_ms": _ms(itl for trace in timed for itl in trace.itls),
        "e2el_ms": _ms(trace.e2el for trace in good),
        "output_throughput": [
            _rate(_tokens(one.good), one.duration) for one in rounds if one.good and one.duration
        ],
    }


def spread(level: Mapping[str, Any], metric: Metric) -> Spread:
    """The spread of ``metric`` at a level."""
    return Spread(
        median=level[f"median_{metric.key}"],
        low=level[f"p{LOW}_{metric.key}"],
        high=level[f"p{HIGH}_{metric.key}"],
        samples=level[f"samples_{metric.key}"],
    )


def _spreads(found: Mapping[str, Sequence[float]]) -> dict[str, float]:
    rows: dict[str, float] = {}
    for key, values in found.items():
        rows[f"mean_{key}"] = statistics.fmean(values) if values else 0.0
        rows[f"median_{key}"] = percentile(values, 50)
        rows[f"std_{key}"] = statistics.pstdev(values) if values else 0.0
        rows |= {f"p{percent}_{key}": percentile(values, percent) for percent in PERCENTILES}
        rows[f"samples_{key}"] = len(values)
    return rows


def _tokens(traces: Iterable[Trace]) -> int:
    return sum(trace.output_tokens for trace in traces)


def _rate(amount: float, seconds: float) -> float:
    return amount / seconds if seconds else 0.0


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _ms(values: Iterable[float | None]) -> list[float]:
    return [1000 * value for value in _known(values)]
