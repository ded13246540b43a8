"""Spoilt observations: reports of probes and answers of servers that may hold anything."""

from __future__ import annotations

import copy
import json
import random
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from support.verify_fake_server import FakeEngine
from support.verify_fakes import CPU, Good
from support.verify_faults import receipt

from faults import Outcome
from imagefactory.verifying import junit, reports, server
from imagefactory.verifying.client import Client
from imagefactory.verifying.models import words

#: Seconds that the judgement of one observation may take.
MOST_SECONDS = 5.0
ODD: tuple[Any, ...] = (
    *(None, True, -1, 1e308, 10**300, "", "\x1b[2J\u202e", "x" * 100_000, [], {}, [[[]]], {"": {}}),
    *({"name": None}, [1, 2], "\ud800", {"seconds": "x"}),
)


def attack(seed: int, count: int, folder: Path) -> Iterator[Outcome]:
    """A spoilt report, and a spoilt answer, each a verdict: never an exception, never a pass."""
    chance = random.Random(seed)  # noqa: S311 - repeatable
    engine = FakeEngine()
    for number in range(count):
        began = time.monotonic()
        name, tried = ("answer", _answer) if number % 2 else ("report", _report)
        try:
            detail = tried(chance, engine)
        except Exception as error:  # noqa: BLE001 - whatever it is, it was not held
            detail = f"{type(error).__name__}: {error}"
        if time.monotonic() - began > MOST_SECONDS:
            detail = f"took {time.monotonic() - began:.0f} s"
        yield Outcome(fault=f"{name} {number}", held=not detail, detail=detail)


def _report(chance: random.Random, _: FakeEngine) -> str:
    image = Good(torch=CPU)
    text = spoil(chance, image.reported)
    try:
        image.report = reports.read(text)
    except ValueError:
        image.report = None
    made = receipt(image)
    junit.to_xml(made)
    json.dumps(made.as_dict()).encode()
    return "passed without a report" if image.report is None and made.passed else ""


def _answer(chance: random.Random, engine: FakeEngine) -> str:
    kind = chance.choice(("completion", "chat", "stream", "call", "call-stream"))
    question = words.CHATS[0]
    function = {"name": "f", "arguments": '{"a": 1}'}
    said = {"content": "x", "reasoning": "x", "tool_calls": [{"index": 0, "function": function}]}
    choice = {"text": "x", "message": said, "delta": said, "finish_reason": "stop"}
    shape = {"choices": [{**choice, "logprobs": {"content": [{"logprob": -0.1}]}}]}
    text = spoil(chance, shape)
    spoilt = f"data: {text}\n\ndata: [DONE]\n" if kind.endswith("stream") else text
    engine.behaviour.body = spoilt.encode("utf-8", "surrogatepass")
    dial = lambda: engine.container.attach(())  # noqa: E731
    with closing(Client(dial, model=server.MODEL_NAME, seconds=2)) as client:
        answer = client.ask(kind, question)
    json.dumps(f"{answer} {answer.doubt}")
    return "a right answer" if answer.right else ""


def spoil(chance: random.Random, value: Any) -> str:
    """``value`` as JSON with a part replaced, or with its text damaged."""
    spoilt = json.loads(json.dumps(value))
    for _ in range(chance.randint(1, 3)):
        _replace(chance, spoilt)
    text = json.dumps(spoilt)
    damage = chance.randrange(6)
    at = chance.randrange(len(text) or 1)
    if damage == 0:
        return text[:at]
    if damage == 1:
        return text[:at] + chance.choice('{}[]",:\0\x1b9N') + text[at + 1 :]
    if damage == 2:
        return chance.choice(("", "[" * 50_000, "NaN", "9" * 5000, text * 2, "[1,2]", "{}"))
    return text


def _replace(chance: random.Random, value: Any) -> None:
    """Replace a random part of ``value``, somewhere inside."""
    while True:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not keys:
            return
        key = chance.choice(keys)
        if isinstance(value[key], dict | list) and value[key] and chance.random() < 0.7:
            value = value[key]
            continue
        value[key] = copy.deepcopy(chance.choice(ODD))
        return
