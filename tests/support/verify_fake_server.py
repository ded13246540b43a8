"""A fake vLLM server on a real socket, which can misbehave as broken servers do."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from imagefactory.system.engine import Engine, RunningContainer
from imagefactory.system.engine.docker import Docker
from imagefactory.verifying import server, tiny_model

QUICK = server.Patience(start=1.5, answer=0.5, stop=1, poll=0.02)
RIGHT = {
    question.prompt: " ".join(question.answer)
    for question in (*tiny_model.COMPLETIONS, *tiny_model.CHATS)
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
    exit_code: int = 0
    seen: list[dict[str, Any]] = field(default_factory=list)


class Handler(BaseHTTPRequestHandler):
    server: FakeServer

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
        time.sleep(behaviour.hang)
        prompt = body["prompt"] if "prompt" in body else body["messages"][0]["content"]
        text = RIGHT[prompt] if behaviour.text is None else behaviour.text
        if behaviour.status != 200:
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

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that give up, as some tests do."""


class FakeContainer(RunningContainer):
    """The container that the fake server seems to run in."""

    def __init__(self, behaviour: Behaviour, host_port: int) -> None:
        super().__init__(Docker(), id="c0ffee", host_port=host_port)
        self.behaviour = behaviour
        self.removed = False

    def logs(self) -> str:
        return "starting\nIllegal instruction"

    def alive(self) -> bool:
        return self.behaviour.alive

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

    def start(self, image: str, argv: Sequence[str], **options: Any) -> FakeContainer:
        self.started = {"image": image, "argv": argv, **options}
        (mount,) = options["mounts"]
        self.started["files"] = sorted(path.name for path in mount[0].iterdir())
        return self.container

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()
