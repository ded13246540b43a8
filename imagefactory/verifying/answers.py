"""What a server answered to a question, and what is wrong with it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from imagefactory.verifying.models.words import GARBAGE, Question

#: When a question was asked: at the beginning.
FIRST = "asked first"
#: How likely a right word is at least: any of the tiny models gives it 0.85 and more.
SURE = 0.5


class UnansweredError(Exception):
    """There was no answer, or none that can be read; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """An answer as it was read.

    Attributes:
        text: reasoning between ``<think>`` and ``</think>``, calls as name and arguments, and what
            is said, whichever there are.
        finish: its ``finish_reason``.
        logprobs: the logarithm of the chance of each of its tokens; NaN where that is no number.
        fault: what is wrong with its ``usage``, or with the order of its events.
    """

    text: str
    finish: str = ""
    logprobs: tuple[float, ...] = ()
    fault: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The server's answer to one question.

    Attributes:
        kind: ``completion``, ``chat``, ``stream``, ``reasoning`` or ``call``; the last two also
            streamed, as ``reasoning-stream`` and ``call-stream``.
        question: the question, with the answer that is right.
        status: HTTP status, None if there was no response.
        text: the answer's text, or what came instead of one.
        seconds: how long it took.
        when: ``FIRST``, or under which circumstances it was asked again.
        finish: its ``finish_reason``.
        logprobs: the logarithm of the chance of each of its tokens.
        fault: what is wrong with its ``usage``, or with the order of its events.
    """

    kind: str
    question: Question
    status: int | None
    text: str
    seconds: float
    when: str = FIRST
    finish: str = ""
    logprobs: tuple[float, ...] = ()
    fault: str = ""

    @property
    def right(self) -> bool:
        """Whether the text is word for word the right one, ended for the right reason, and is
        counted right.
        """
        return self.wording and self.finish == self.question.finish and not self.fault

    @property
    def wording(self) -> bool:
        """Whether the text is word for word the right one."""
        return self.status == 200 and tuple(self.text.split()) == self.question.answer

    @property
    def doubt(self) -> str:
        """Why the chances of its tokens are not those of a right answer; empty if they are."""
        if not self.logprobs:
            return "no logprobs"
        odd = [one for one in self.logprobs if not (math.isfinite(one) and one <= 0)]
        if odd:
            return f"a logprob of {odd[0]}"
        least = math.exp(min(self.logprobs))
        return "" if least >= SURE else f"a word had a chance of {least:.2f} only"

    def __str__(self) -> str:
        expected = " ".join(self.question.answer)
        if self.right:
            return f"{self.question.prompt} → {expected}"
        asked = f"{self.kind} {self.question.prompt!r}, {self.when}"
        if self.wording and self.finish == self.question.finish:
            return f"{asked}: {self.fault}"
        if self.wording:
            return f"{asked}: finish_reason {self.finish!r} and not {self.question.finish!r}"
        status = "no response" if self.status is None else f"HTTP {self.status}"
        wrong = f"{asked}: {status}, {self.text.strip()!r} and not {expected!r}"
        looks = symptom(self.text) if self.status == 200 else ""
        return f"{wrong} ({looks})" if looks else wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """What came back for a request that no server should answer.

    Attributes:
        request: what is wrong with the request.
        status: HTTP status, None if there was no response.
        text: the beginning of what came back.
    """

    request: str
    status: int | None
    text: str

    @property
    def right(self) -> bool:
        """Whether it was refused with a reason, in the form of OpenAI's errors."""
        if self.status is None or not 400 <= self.status < 500:
            return False
        try:
            body = json.loads(self.text)
        except (ValueError, RecursionError):
            return False
        error = body.get("error", body) if isinstance(body, dict) else None
        return isinstance(error, dict) and bool(error.get("message"))

    def __str__(self) -> str:
        status = "no response" if self.status is None else f"HTTP {self.status}"
        return (
            f"{self.request}: {status}"
            if self.right
            else f"{self.request}: {status}, {self.text!r}"
        )


def symptom(text: str) -> str:
    """What a wrong text looks like; empty if it is none of the ways in which models break."""
    words = text.split()
    if not words:
        return "it is empty"
    if not text.replace(GARBAGE, "").strip():
        return f"only {GARBAGE!r}, token 0, which is what zeros and NaN end in"
    for period in range(1, len(words) // 3 + 1):
        if all(word == words[index % period] for index, word in enumerate(words)):
            return "it repeats itself"
    return ""


def read(kind: str, text: str) -> Said:
    """What an answer of HTTP 200 to a question of this kind says.

    Raises UnansweredError, and LookupError, TypeError or AttributeError for JSON of another shape.
    """
    if kind.endswith("stream"):
        return _stream(text)
    whole = parse(text)
    choice = whole["choices"][0]
    said = str(choice["text"]) if kind == "completion" else _message(choice["message"])
    logprobs = _logprobs(choice)
    fault = _miscounted(whole.get("usage"), len(logprobs), len(logprobs))
    return Said(text=said, finish=_finish(choice), logprobs=logprobs, fault=fault)


def _miscounted(usage: object, least: int, most: int) -> str:
    """What is wrong with the numbers of tokens of an answer; empty if nothing is.

    ``least`` and ``most`` are how many it has, by its logprobs; 0 where these do not tell.
    """
    known = usage if isinstance(usage, dict) else {}
    given = [known.get(f"{name}_tokens") for name in ("prompt", "completion", "total")]
    counts = [one for one in given if type(one) is int and one > 0]
    if len(counts) != len(given):
        return f"no usage, which says how many tokens there are: {str(usage)[:100]}"
    prompt, completion, total = counts
    if prompt + completion != total:
        return f"a usage of {prompt} and {completion} tokens, and of {total} in total"
    if completion < least or 0 < most < completion:
        return f"a usage of {completion} tokens, and logprobs of {least}"
    return ""


def parse(text: str) -> Any:
    """The JSON of an answer. Raises UnansweredError."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnansweredError(f"not JSON ({type(error).__name__}): {text[-200:]!r}") from None


def _stream(text: str) -> Said:
    """What all events together say; the last ones have to be the usage and ``[DONE]``."""
    events = [
        line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")
    ]
    if not events or events.pop() != "[DONE]":
        raise UnansweredError(f"the stream ends without [DONE]: {text[-200:]!r}")
    whole: dict[str, Any] = {"tool_calls": {}}
    finish, fault = "", ""
    logprobs: tuple[float, ...] = ()
    rows = [parse(event) for event in events]
    usage = rows.pop().get("usage") if rows and not rows[-1]["choices"] else None
    for row in rows:
        choice = row["choices"][0]
        if finish:
            fault = f"the stream goes on after finish_reason {finish!r}"
        delta = choice["delta"]
        for name in ("content", "reasoning", "reasoning_content"):
            whole[name] = whole.get(name, "") + str(delta.get(name) or "")
        for part in delta.get("tool_calls") or ():
            _append(whole["tool_calls"].setdefault(part["index"], {}), part)
        finish = _finish(choice) or finish
        logprobs += _logprobs(choice)
    message = {**whole, "tool_calls": list(whole["tool_calls"].values())}
    # vLLM 0.22 sends no logprobs of tokens that its parsers keep to themselves
    fault = fault or _miscounted(usage, len(logprobs), 0)
    return Said(text=_message(message), finish=finish, logprobs=logprobs, fault=fault)


def _append(call: dict[str, Any], part: Mapping[str, Any]) -> None:
    """Add a part of a call to what came of it."""
    function = part.get("function") or {}
    call["id"] = part.get("id") or call.get("id")
    known = call.setdefault("function", {"name": "", "arguments": ""})
    for name in known:
        known[name] += str(function.get(name) or "")


def _message(message: Mapping[str, Any]) -> str:
    """A message as one text."""
    parts = []
    if str(message.get("reasoning") or "").strip():
        parts.append(f"<think> {message['reasoning']} </think>")
    if message.get("reasoning_content"):
        old = "reasoning_content"  # the field's former name, which clients no longer read
        parts.append(f"<{old}> {message[old]} </{old}>")
    parts += [_call(call) for call in message.get("tool_calls") or ()]
    content = message.get("content")
    if str(content or "").strip() or not parts:
        parts.append("" if content is None else str(content))
    return " ".join(parts)


def _call(call: Mapping[str, Any]) -> str:
    """A call as its function's name and its arguments, in one form of JSON if they are JSON."""
    function = call["function"]
    arguments = str(function["arguments"])
    try:
        arguments = json.dumps(json.loads(arguments))
    except (ValueError, RecursionError):
        arguments = f"(not JSON) {arguments}"
    return f"{function['name']} {arguments}" + ("" if call.get("id") else " (a call without an id)")


def _finish(choice: Mapping[str, Any]) -> str:
    return str(choice.get("finish_reason") or "")


def _logprobs(choice: Mapping[str, Any]) -> tuple[float, ...]:
    """The chosen tokens' logprobs, in either of OpenAI's two forms; () if there are none."""
    found = choice.get("logprobs")
    if not isinstance(found, dict):
        return ()
    values: Sequence[Any] = found.get("token_logprobs") or [
        one.get("logprob") for one in found.get("content") or ()
    ]
    return tuple(_number(value) for value in values)


def _number(value: object) -> float:
    right = isinstance(value, int | float) and not isinstance(value, bool)
    try:
        return float(value) if right else math.nan  # type: ignore[arg-type]
    except OverflowError:
        return math.nan
