"""A server that answers a tiny model's questions as vLLM does, or misbehaves as broken ones do.

Of the standard library alone: it also runs in containers, as their only program.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

#: Of every answer that is not a stream.
TOKENS = 8


@dataclass
class Behaviour:
    """How the fake server behaves; by default it works."""

    health: int = 200
    models: Any = field(default_factory=lambda: {"data": [{"id": "capitals"}]})
    status: int = 200
    text: str | None = None
    hang: float = 0
    done: str = "data: [DONE]\n\n"
    alive: bool = True
    out_of_memory: bool = False
    log: str = "starting\nIllegal instruction\n"
    #: Answers that are right; those after them are garbage. None if all are.
    good_for: int | None = None
    #: Questions that get an answer; those after them find that the server is gone. None if all do.
    lives_for: int | None = None
    #: What it exits with then, if it runs as a program.
    exits: int | None = None
    #: Requests at a time that are answered right, each of which takes so long. None if any is.
    good_at_once: int | None = None
    takes: float = 0.02
    #: Sent byte by byte with so many seconds between them, instead of an answer.
    trickle: float | None = None
    #: Sent instead of the body of an answer.
    body: bytes | None = None
    #: Sent instead of the text of streams.
    streamed: str | None = None
    #: What reasoning is called, and added to the arguments of a call.
    reasoning: str = "reasoning"
    arguments: str = ""
    finish: str | None = None
    logprob: float | None = -0.01
    #: Sent instead of the right ``usage``, and after the ``finish_reason`` of a stream.
    usage: Any = field(default_factory=dict)
    more: tuple[str, ...] = ()
    #: The status of requests that are wrong, and whether answers are right after one.
    refusal: int = 400
    good_after_refusal: bool = True
    exit_code: int = 0
    #: What ``/metrics`` says.
    metrics: str = ""
    seen: list[dict[str, Any]] = field(default_factory=list)

    def message(self, text: str) -> dict[str, Any]:
        """What vLLM's parsers make of a text that is written as right answers are."""
        thought, _, rest = text.rpartition("</think>")
        name, _, arguments = rest.partition(" {")
        if arguments:
            function = {"name": name.strip(), "arguments": "{" + arguments + self.arguments}
            return {"content": None, "tool_calls": [{"id": "call_9", "function": function}]}
        found = {self.reasoning: thought.removeprefix("<think>")} if thought else {}
        return {"content": f" {rest.strip()}", **found}


class Handler(BaseHTTPRequestHandler):
    server: Questions  # type: ignore[assignment]
    protocol_version = "HTTP/1.1"
    wbufsize = -1

    def do_GET(self) -> None:
        behaviour = self.server.behaviour
        if self.path == "/health":
            self.reply(behaviour.health, b"")
        elif self.path == "/metrics":
            self.reply(200, behaviour.metrics.encode())
        else:
            self.reply(200, json.dumps(behaviour.models).encode())

    def do_POST(self) -> None:
        behaviour = self.server.behaviour
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body.get("prompt", "") not in {"", *self.server.completed}:
            self.server.refused = True
            self.reply(behaviour.refusal, b'{"error": {"message": "this cannot be asked"}}')
            return
        behaviour.seen.append(body)
        if behaviour.lives_for is not None and len(behaviour.seen) > behaviour.lives_for:
            self.close_connection = True
            if behaviour.exits is not None:
                os._exit(behaviour.exits)
            return
        with self.server.lock:
            self.server.asking += 1
        if behaviour.hang:
            time.sleep(behaviour.hang)
        try:
            self.answer(body)
        finally:
            with self.server.lock:
                self.server.asking -= 1

    def answer(self, body: dict[str, Any]) -> None:
        behaviour = self.server.behaviour
        question = self.server.question_of(body)
        text = " ".join(question.answer) if behaviour.text is None else behaviour.text
        if behaviour.good_for is not None and len(behaviour.seen) > behaviour.good_for:
            text = "!!!!!"
        if behaviour.good_at_once is not None:
            time.sleep(behaviour.takes)
            text = "!!!!!" if self.server.asking > behaviour.good_at_once else text
        if self.server.refused and not behaviour.good_after_refusal:
            text = "!!!!!"
        finish = behaviour.finish or question.finish
        if behaviour.trickle is not None:
            self.trickle(behaviour.trickle)
        elif behaviour.body is not None:
            self.reply(200, behaviour.body)
        elif behaviour.status != 200:
            self.reply(behaviour.status, b'{"error": "EngineDeadError"}')
        elif body.get("stream"):
            self.stream(text if behaviour.streamed is None else behaviour.streamed, finish)
        elif "prompt" in body:
            numbers = {"token_logprobs": [behaviour.logprob] * TOKENS}
            self.choice({"text": f" {text}", "finish_reason": finish, "logprobs": numbers})
        else:
            said = behaviour.message(text)
            tokens = [{"logprob": behaviour.logprob}] * TOKENS
            self.choice({"message": said, "finish_reason": finish, "logprobs": {"content": tokens}})

    def choice(self, one: dict[str, Any]) -> None:
        self.reply(200, json.dumps({"choices": [one], "usage": self.usage(TOKENS)}).encode())

    def usage(self, tokens: int) -> Any:
        counted = {"prompt_tokens": 5, "completion_tokens": tokens, "total_tokens": 5 + tokens}
        given = self.server.behaviour.usage
        return given if given is None else {**counted, **given}

    def stream(self, text: str, finish: str) -> None:
        said = self.server.behaviour.message(text)
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
        for call in said.pop("tool_calls", ()):
            arguments = call["function"].pop("arguments")
            deltas.append({"tool_calls": [{"index": 0, **call}]})
            halves = ({"arguments": half} for half in (arguments[:5], arguments[5:]))
            deltas += [{"tool_calls": [{"index": 0, "function": half}]} for half in halves]
        for name in sorted(said, reverse=True):
            deltas += [{name: f" {word}"} for word in (said[name] or "").split()]
        numbers = {"content": [{"logprob": self.server.behaviour.logprob}]}
        choices: list[dict[str, Any]] = [{"delta": one, "logprobs": numbers} for one in deltas]
        choices.append({"delta": {}, "finish_reason": finish})
        choices += [{"delta": {"content": word}} for word in self.server.behaviour.more]
        rows: list[dict[str, Any]] = [{"choices": [choice]} for choice in choices]
        rows.append({"choices": [], "usage": self.usage(len(deltas))})
        events = [f"data: {json.dumps(row)}\n\n" for row in rows]
        self.reply(200, "".join((*events, self.server.behaviour.done)).encode())

    def trickle(self, seconds: float) -> None:
        """Say that more is coming, for ever."""
        self.send_response(200)
        self.end_headers()
        with suppress(OSError):
            while True:
                self.wfile.write(b" ")
                self.wfile.flush()
                time.sleep(seconds)

    def reply(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Keep the test output clean."""


class Questions:
    """What is asked, and what has been so far; ``completed`` are questions by their prompt."""

    def __init__(
        self, behaviour: Behaviour, completions: Iterable[Any], chats: Iterable[Any]
    ) -> None:
        self.behaviour = behaviour
        self.completed = {question.prompt: question for question in completions}
        self.chats = tuple(chats)
        self.lock = threading.Lock()
        self.asking = 0
        self.refused = False

    def question_of(self, body: dict[str, Any]) -> Any:
        """The question that a request asks."""
        if "prompt" in body:
            return self.completed[body["prompt"]]
        asked = [
            question
            for question in self.chats
            if body["messages"][0]["content"] == question.prompt
            and all(body.get(name) == value for name, value in question.extra.items())
        ]
        return max(asked, key=lambda question: len(question.extra))


class FakeServer(Questions):
    """Answers on its end of a pair of sockets, one thread each."""

    def serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):  # clients that give up, as some tests do
            Handler(connection, ("", 0), self)  # type: ignore[arg-type]


class Program(Questions, ThreadingHTTPServer):
    """Answers on a port, as the program of a container."""

    daemon_threads = True

    def __init__(self, port: int, *given: Any) -> None:
        Questions.__init__(self, *given)
        ThreadingHTTPServer.__init__(self, ("127.0.0.1", port), Handler)


def main() -> None:
    """Lie as the JSON in the variable LIE says; the questions are in a file beside this one."""
    told = json.loads(os.environ["LIE"])
    questions = json.loads(Path(__file__).with_name("questions.json").read_text())
    _say("INFO starting\n")
    if not told.get("deaf"):
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    if told.get("dies"):
        sys.exit(told["dies"])
    if told.get("eats") and (told.get("itself") or not os.fork()):
        b"x" * told["eats"]
        os._exit(0)
    for _ in range(told.get("floods", 0)):
        _say("WARNING " + "." * 1015 + "\n")
    _say("INFO serving\n")
    if told.get("silent"):
        signal.pause()
    behaviour = Behaviour(**told.get("behaviour", {}))
    asked = ([SimpleNamespace(**one) for one in questions[kind]] for kind in ("completed", "chats"))
    Program(int(os.environ["PORT"]), behaviour, *asked).serve_forever()


def _say(text: str) -> None:
    os.write(1, text.encode())


if __name__ == "__main__":
    main()
