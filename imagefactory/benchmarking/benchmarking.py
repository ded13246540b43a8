"""Measures a server: its speed at several levels of concurrency, and whether it finds needles."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from random import SystemRandom
from typing import Any

from imagefactory.benchmarking import metrics, prompts
from imagefactory.benchmarking.prompts import FIRST_WORDS
from imagefactory.benchmarking.results import FORMAT, Result
from imagefactory.benchmarking.streaming import Server
from imagefactory.benchmarking.trace import Round, Trace
from imagefactory.errors import CheckFailedError, fail

#: Tokens that the answer to a needle's question may have; models reason about it.
ANSWER_TOKENS = 1024
#: Tokens of the answers to requests that only warm up or count.
WARM_UP_TOKENS = 8
#: Requests that bring a prompt to its length: each counts the words of the one before.
SIZINGS = 2
#: Characters of an answer that are kept.
SHOWN = 300

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is asked of a server.

    Attributes:
        concurrency: the levels, each as the number of requests at the same time.
        repeats: the rounds of each level that are measured, after one that is not.
        prompt_tokens: the length of prompts, as nearly as it can be met.
        output_tokens: the length of answers.
        depths: where needles are hidden.
        context: the length of the text that they are hidden in.
    """

    concurrency: tuple[int, ...]
    repeats: int
    prompt_tokens: int
    output_tokens: int
    depths: tuple[float, ...] = ()
    context: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """What the server runs in."""

    name: str
    digest: str


def measure(
    server: Server, model: str, load: Load, image: Image | None, now: datetime, say: Say
) -> Result:
    """Measure ``server``.

    Raises CheckFailedError if it does not even answer the requests that warm it up.
    """
    run = _Run(server, model)
    words = run.words_for(load.prompt_tokens)
    before = server.prefix_hits()
    levels = []
    for concurrency in load.concurrency:
        run.round(concurrency, words, load.output_tokens)  # kernels are compiled for its shapes
        say(f"concurrency {concurrency}: {load.repeats} rounds")
        rounds = [run.round(concurrency, words, load.output_tokens) for _ in range(load.repeats)]
        levels.append(metrics.summary(rounds, concurrency=concurrency, model=model))
    after = server.prefix_hits()
    needles = run.needles(load, words, say) if load.depths else []
    return Result(
        {
            "format": FORMAT,
            "date": now.strftime("%Y%m%d-%H%M%S"),
            "url": server.url,
            "image": image.name if image else None,
            "digest": image.digest if image else None,
            "model_id": model,
            "prompt_tokens": load.prompt_tokens,
            "output_tokens": load.output_tokens,
            "repeats": load.repeats,
            "prefix_cache_hits": None if before is None or after is None else after - before,
            "levels": levels,
            "needles": needles,
        }
    )


class _Run:
    """Requests to one server; no two of them have the same beginning."""

    def __init__(self, server: Server, model: str) -> None:
        self._server = server
        self._model = model
        self._numbers = count()

    def words_for(self, tokens: int, words: int = FIRST_WORDS) -> int:
        """How many words have so many tokens, as the server counts them; this warms it up, too."""
        for _ in range(SIZINGS):
            trace = self._complete(words, WARM_UP_TOKENS)
            if not trace.ok:
                what = f"{self._server.url} does not answer a prompt of {words} words: "
                fix = "look into the server's log, or ask for fewer --prompt-tokens"
                raise fail(CheckFailedError, "bench-refused", what + trace.error, fix=fix)
            words = prompts.words_for(tokens, words=words, counted=trace.prompt_tokens)
        return words

    def round(self, concurrency: int, words: int, tokens: int) -> Round:
        """So many requests at the same time."""
        start = threading.Barrier(concurrency)

        def ask(_: int) -> Trace:
            start.wait()
            return self._complete(words, tokens)

        with ThreadPoolExecutor(concurrency) as pool:
            try:
                return Round(traces=tuple(pool.map(ask, range(concurrency))))
            except BaseException:  # Ctrl-C would wait for all answers
                self._server.stop.set()
                raise

    def needles(self, load: Load, words: int, say: Say) -> list[dict[str, Any]]:
        """Whether the model finds each needle."""
        words = self.words_for(load.context, words)
        found = []
        for depth in load.depths:
            say(f"needle at depth {depth:g} of {load.context} tokens")
            hidden = prompts.needle(depth, SystemRandom())
            text = prompts.haystack(words, hidden, number=next(self._numbers), nonce=_nonce())
            trace = self._server.chat(self._model, text, ANSWER_TOKENS, salt=_nonce())
            found.append(judged(hidden, trace))
        return found

    def _complete(self, words: int, tokens: int) -> Trace:
        text = prompts.prompt(words, number=next(self._numbers), nonce=_nonce())
        return self._server.complete(self._model, text, tokens, salt=_nonce())


def judged(hidden: prompts.Needle, trace: Trace) -> dict[str, Any]:
    """What became of a needle: it is found if the answer, its reasoning aside, has the code."""
    return {
        "depth": hidden.depth,
        "expected": hidden.code,
        "found": trace.ok and hidden.code in trace.text,
        "answer": trace.text.strip()[:SHOWN],
        "error": trace.error,
        "input_len": trace.prompt_tokens,
        "output_len": trace.output_tokens,
        "ttft_ms": 1000 * trace.ttft if trace.ok else None,
        "prefill_throughput": trace.prefill_throughput if trace.ok else None,
    }


def _nonce() -> str:
    return secrets.token_hex(8)
