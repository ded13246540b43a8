"""Asks a server everything about a tiny model, wherever it runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

from imagefactory.verifying.answers import FIRST, Answer, Refusal
from imagefactory.verifying.client import Client
from imagefactory.verifying.models.models import TinyModel
from imagefactory.verifying.models.words import Question

#: Tokens that are asked for at once when the speed is measured.
STREAMS, TOKENS = 8, 128
#: Requests that every server refuses, by what is wrong with them.
MISUSES: Mapping[str, Mapping[str, Any]] = {
    "a prompt longer than the context": {"prompt": "the " * 5000},
    "max_tokens of -1": {"max_tokens": -1},
    "a model that is not served": {"model": "no-such-model"},
    "a temperature that is no number": {"temperature": "hot"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a server said to everything that it was asked."""

    answers: tuple[Answer, ...]
    refusals: tuple[Refusal, ...] = ()


def everything(
    model: TinyModel, connect: Callable[[], Client], *, client: Client, seconds: float
) -> Asked:
    """All questions one after the other, many at once, requests that are wrong, and all again.

    A server may answer right as long as it has nothing in its cache, one request in its batch, or
    only good requests. ``connect`` makes clients for those that ask at once and wait ``seconds``
    for each other.
    """
    first = _all(model, client, FIRST)
    if not all(answer.right for answer in first):
        return Asked(answers=first)  # it is not going to get better, and may take a minute for each
    together = at_once(model.at_once, connect, seconds=seconds)
    refusals = tuple(client.misuse(fault, body) for fault, body in MISUSES.items())
    again = _all(model, client, "asked again")
    return Asked(answers=(*first, *together, *again), refusals=refusals)


def speed(model: TinyModel, connect: Callable[[], Client]) -> float:
    """Tokens a second of several long answers at once; 0 if one of them does not come."""

    def count(_: int) -> int:
        with closing(connect()) as client:
            return client.count_tokens(model.completions[0].prompt, TOKENS)

    began = time.monotonic()
    with ThreadPoolExecutor(STREAMS) as pool:
        counts = list(pool.map(count, range(STREAMS)))
    seconds = time.monotonic() - began
    return round(sum(counts) / seconds, 1) if all(counts) else 0.0


def at_once(
    questions: tuple[Question, ...], connect: Callable[[], Client], *, seconds: float
) -> tuple[Answer, ...]:
    """The answers to completions that are all asked for at the same time."""
    when = f"asked with {len(questions) - 1} others"

    def ask(question: Question) -> Answer:
        with closing(connect()) as client:
            client.healthy()  # opens the connection
            with suppress(threading.BrokenBarrierError):  # asked alone, if the others are not ready
                ready.wait()
            return client.ask("completion", question, when=when)

    ready = threading.Barrier(len(questions), timeout=seconds)
    with ThreadPoolExecutor(len(questions)) as pool:
        return tuple(pool.map(ask, questions))


def _all(model: TinyModel, client: Client, when: str) -> tuple[Answer, ...]:
    kinds = (
        ("completion", model.completions),
        *(("chat", model.chats), ("stream", model.chats)),
        *(("reasoning", model.reasoning), ("reasoning-stream", model.reasoning)),
        *(("call", model.calls), ("call-stream", model.calls)),
    )
    answers: list[Answer] = []
    for kind, questions in kinds:
        for question in questions:
            answers.append(client.ask(kind, question, when=when))
            if answers[-1].status is None:
                return tuple(answers)  # each may take a minute not to be answered
    return tuple(answers)
