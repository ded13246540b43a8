"""What a client saw of one request, and the figures that follow from it. Pure.

The figures have the names and definitions of ``vllm bench serve``; the speeds of prefill and decode
are those of ``llama-benchy`` (pp and tg). All times are in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One request to a server that streams its answer.

    Attributes:
        started: when the request was sent.
        arrived: when each part of the answer that has a token arrived; several tokens may be in
            one part, as they are with speculative decoding.
        prompt_tokens: the length of the prompt, as the server counted it.
        output_tokens: the length of the answer, likewise.
        text: the answer without its reasoning.
        error: why the request failed; empty if it did not, and nothing else counts if it did.
    """

    started: float
    arrived: tuple[float, ...] = ()
    prompt_tokens: int = 0
    output_tokens: int = 0
    text: str = ""
    error: str = ""

    @property
    def ok(self) -> bool:
        """Whether the whole answer arrived."""
        return not self.error

    @property
    def ttft(self) -> float:
        """Time to first token."""
        return self.arrived[0] - self.started

    @property
    def e2el(self) -> float:
        """End-to-end latency: until the last token."""
        return self.arrived[-1] - self.started

    @property
    def itls(self) -> tuple[float, ...]:
        """Inter-token latencies: the times between two parts of the answer."""
        return tuple(after - before for before, after in pairwise(self.arrived))

    @property
    def tpot(self) -> float | None:
        """Time per output token, the first one left out; None if there is no other."""
        if self.output_tokens < 2:
            return None
        return (self.e2el - self.ttft) / (self.output_tokens - 1)

    @property
    def prefill_throughput(self) -> float | None:
        """Tokens of the prompt per second until the first token, time in a queue included."""
        return self.prompt_tokens / self.ttft if self.ttft > 0 else None

    @property
    def decode_throughput(self) -> float | None:
        """Tokens per second after the first; None if all of them arrived at once."""
        return 1 / self.tpot if self.tpot else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Requests that were sent at the same time."""

    traces: tuple[Trace, ...]

    @property
    def good(self) -> tuple[Trace, ...]:
        """Those that were answered."""
        return tuple(trace for trace in self.traces if trace.ok)

    @property
    def duration(self) -> float:
        """From the first request to the last token of those that were answered."""
        good = self.good
        if not good:
            return 0.0
        return max(one.arrived[-1] for one in good) - min(one.started for one in good)
