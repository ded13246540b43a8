"""A fake vLLM server that streams at once, and can break as servers break."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from support.index import running


def events(*rows: Any, done: bool = True) -> bytes:
    """Server-sent events as vLLM writes them."""
    texts = [f"data: {json.dumps(row)}\n\n" for row in rows]
    return "".join([*texts, "data: [DONE]\n\n" if done else ""]).encode()


def part(text: str) -> dict[str, Any]:
    """A part of a completion."""
    return {"object": "text_completion", "choices": [{"index": 0, "text": text}]}


def usage(prompt: int, output: int) -> dict[str, Any]:
    """The last event."""
    return {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": output}}


@dataclass
class Behaviour:
    """How it behaves; by default it works, and a word is two tokens."""

    models: tuple[str, ...] = ("tiny", "other")
    #: The requests that fail, by their number, and what is sent instead.
    broken: dict[int, bytes] = field(default_factory=dict)
    refusal: tuple[int, str] | None = None
    #: Needles are found up to this depth of the text.
    sees: float = 1.0
    thinks_only: bool = False
    hits: int = 0
    seen: list[dict[str, Any]] = field(default_factory=list)
    keys: set[str | None] = field(default_factory=set)


class _Handler(BaseHTTPRequestHandler):
    wbufsize = -1

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        behaviour: Behaviour = self.server.behaviour  # type: ignore[attr-defined]
        if self.path == "/metrics":
            name = 'vllm:prefix_cache_hits_total{engine="0"}'
            self._send(200, f"# HELP x\n{name} {behaviour.hits * len(behaviour.seen)}.0\n".encode())
        else:
            self._send(200, json.dumps({"data": [{"id": n} for n in behaviour.models]}).encode())

    def do_POST(self) -> None:
        behaviour: Behaviour = self.server.behaviour  # type: ignore[attr-defined]
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:  # type: ignore[attr-defined]
            number = len(behaviour.seen)
            behaviour.seen.append(body)
        behaviour.keys.add(self.headers["Authorization"])
        if behaviour.refusal:
            status, text = behaviour.refusal
            self._send(status, json.dumps({"error": {"message": text}}).encode())
        elif number in behaviour.broken:
            self._send(200, behaviour.broken[number])
        elif "messages" in body:
            self._send(200, _answer(behaviour, body["messages"][0]["content"]))
        else:
            tokens = body["max_tokens"]
            parts = [part(" word")] * tokens
            self._send(200, events(*parts, usage(2 * len(body["prompt"].split()), tokens)))

    def _send(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(content)


def _answer(behaviour: Behaviour, asked: str) -> bytes:
    """The code that the text hides, as a model that reasons says it."""
    found = re.search(r"is ([A-Z]+-[A-Z]+-\d{4})\.", asked)
    assert found is not None
    reached = found.start() / len(asked) <= behaviour.sees
    code = found[1] if reached else "UNKNOWN"
    said: list[dict[str, str]] = [{"role": "assistant", "content": ""}, {"reasoning": f"so {code}"}]
    said += [] if behaviour.thinks_only else [{"content": code[:4]}, {"content": code[4:]}]
    rows = [{"choices": [{"index": 0, "delta": delta}]} for delta in said]
    return events(*rows, usage(2 * len(asked.split()), 9))


@contextmanager
def serving(behaviour: Behaviour, port: int = 0) -> Iterator[str]:
    """Serve on loopback, at any port unless one is given; gives the URL."""
    server = ThreadingHTTPServer(("127.0.0.1", port), _Handler)
    server.behaviour = behaviour  # type: ignore[attr-defined]
    server.lock = threading.Lock()  # type: ignore[attr-defined]
    with running(server) as url:
        yield url
