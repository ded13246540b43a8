"""A fake vLLM server on a real socket, which can misbehave as broken servers do."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from imagefactory.system.engine import Engine, RunningContainer
from imagefactory.system.engine.docker import Docker
from imagefactory.verifying import server, tiny_model

QUICK = server.Patience(start=1.5, answer=0.5, stop=1, poll=0.02)
RIGHT = {
    question.prompt: " ".join(question.answer)
    for question in (*tiny_model.COMPLETIONS, *tiny_model.CHATS, *tiny_model.AT_ONCE)
}


@dataclass
class Behaviour:
    """How the fake server behaves; by default it works."""

    health: int = 200
    models: Any = field(default_factory=lambda: {"data": [{"id": server.MODEL_NAME}]})
    status: int = 200
    text: str | None = None
    hang: float = 0
    done: str = "data: [DONE]\n\n"
    alive: bool = True
    out_of_memory: bool = False
    log: str = "starting\nIllegal instruction\n"
    #: Answers that are right; those after them are garbage. None if all are.
    good_for: int | None = None
    #: Requests at a time that are answered right. None if any number is.
    good_at_once: int | None = None
    #: Sent byte by byte with so many seconds between them, instead of an answer.
    trickle: float | None = None
    #: Sent instead of the body of an answer.
    body: bytes | None = None
    exit_code: int = 0
    seen: list[dict[str, Any]] = field(default_factory=list)


class Handler(BaseHTTPRequestHandler):
    server: FakeServer
    protocol_version = "HTTP/1.1"
    wbufsize = -1

    def do_GET(self) -> None:
        behaviour = self.server.behaviour
        if self.path == "/health":
            self.reply(behaviour.health, b"")
        else:
            self.reply(200, json.dumps(behaviour.models).encode())

    def do_POST(self) -> None:
        behaviour = self.server.behaviour
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        behaviour.seen.append(body)
        with self.server.lock:
            self.server.asking += 1
        time.sleep(behaviour.hang)
        try:
            self.answer(body)
        finally:
            with self.server.lock:
                self.server.asking -= 1

    def answer(self, body: dict[str, Any]) -> None:
        behaviour = self.server.behaviour
        prompt = body["prompt"] if "prompt" in body else body["messages"][0]["content"]
        text = RIGHT[prompt] if behaviour.text is None else behaviour.text
        if behaviour.good_for is not None and len(behaviour.seen) > behaviour.good_for:
            text = "!!!!!"
        if behaviour.good_at_once is not None:
            time.sleep(0.05)
            text = "!!!!!" if self.server.asking > behaviour.good_at_once else text
        if behaviour.trickle is not None:
            self.trickle(behaviour.trickle)
        elif behaviour.body is not None:
            self.reply(200, behaviour.body)
        elif behaviour.status != 200:
            self.reply(behaviour.status, b'{"error": "EngineDeadError"}')
        elif body.get("stream"):
            chunks = [
                {"role": "assistant", "content": ""},
                *({"content": f" {word}"} for word in text.split()),
                {},
            ]
            events = "".join(
                f"data: {json.dumps({'choices': [{'delta': chunk}]})}\n\n" for chunk in chunks
            )
            self.reply(200, (events + behaviour.done).encode())
        elif "prompt" in body:
            self.reply(200, json.dumps({"choices": [{"text": f" {text}"}]}).encode())
        else:
            self.reply(200, json.dumps({"choices": [{"message": {"content": text}}]}).encode())

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


class FakeServer(ThreadingHTTPServer):
    daemon_threads = True
    behaviour: Behaviour
    request_queue_size = 20

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.lock = threading.Lock()
        self.asking = 0

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that give up, as some tests do."""


class FakeContainer(RunningContainer):
    """The container that the fake server seems to run in."""

    def __init__(self, behaviour: Behaviour, port: int) -> None:
        super().__init__(Docker(), id="c0ffee")
        self.behaviour = behaviour
        self.port = port
        self.attached: list[Sequence[str]] = []
        self.removed = False

    def logs(self, *, last: int | None = None, most: int = 1 << 20) -> str:
        lines = self.behaviour.log.splitlines(keepends=True)
        return "".join(lines if last is None else lines[-last:])[:most]

    def alive(self) -> bool:
        return self.behaviour.alive

    def ran_out_of_memory(self) -> bool:
        return self.behaviour.out_of_memory

    @contextmanager
    def attach(self, argv: Sequence[str]) -> Iterator[socket.socket]:
        self.attached.append(argv)
        with socket.create_connection(("127.0.0.1", self.port)) as connection:
            yield connection

    def stop(self, timeout: float) -> int:  # noqa: ARG002
        return self.behaviour.exit_code

    def remove(self) -> None:
        self.removed = True


class FakeEngine(Engine):
    """Starts the fake server instead of a container."""

    def __init__(self) -> None:
        super().__init__()
        self.behaviour = Behaviour()
        self.http = FakeServer(("127.0.0.1", 0), Handler)
        self.http.behaviour = self.behaviour
        self.container = FakeContainer(self.behaviour, self.http.server_port)
        self.started: dict[str, Any] = {}
        threading.Thread(
            target=self.http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()

    @property
    def version(self) -> tuple[str, str]:
        return "27.5.1", ""

    def start(self, image: str, argv: Sequence[str], **options: Any) -> FakeContainer:
        self.started = {"image": image, "argv": argv, **options}
        (mount,) = options["mounts"]
        self.started["files"] = sorted(path.name for path in mount[0].iterdir())
        return self.container

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()
