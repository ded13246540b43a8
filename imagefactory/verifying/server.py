"""Runs a vLLM server in the image with the tiny model, asks it questions, and stops it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests

from imagefactory.system import ui
from imagefactory.system.engine import Engine, ImageInfo, RunningContainer
from imagefactory.verifying import tiny_model

MODEL_FOLDER = "/opt/imagefactory-smoke-model"
MODEL_NAME = "capitals"
PORT = 8888
ARGUMENTS = ("serve", "--max-model-len", "256", "--served-model-name", MODEL_NAME)
ENVIRONMENT = {
    "MODEL": MODEL_FOLDER,
    "PORT": str(PORT),
    # JSON in quotes on purpose: it has to get through the entrypoint.
    "VLLM_EXTRA_ARGS": "--dtype float32 --enforce-eager --compilation-config '{\"mode\": 0}'",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
#: vLLM's processes talk through shared memory; the engine's default of 64 MB is too little.
SHM_SIZE = "1g"
LOG_LINES = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long to wait, in seconds: for the start, one answer, the end, and between two polls."""

    start: float = 600
    answer: float = 60
    stop: float = 60
    poll: float = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The server's answer to one question.

    Attributes:
        kind: ``completion``, ``chat`` or ``stream``.
        question: the question, with the answer that is right.
        status: HTTP status, None if there was no response.
        text: the answer's text, or what came instead of one.
        seconds: how long it took.
    """

    kind: str
    question: tiny_model.Question
    status: int | None
    text: str
    seconds: float

    @property
    def right(self) -> bool:
        """Whether the text is word for word the right one."""
        return self.status == 200 and tuple(self.text.split()) == self.question.answer

    def __str__(self) -> str:
        expected = " ".join(self.question.answer)
        if self.right:
            return f"{self.question.prompt} → {expected}"
        status = "no response" if self.status is None else f"HTTP {self.status}"
        return (
            f"{self.kind} {self.question.prompt!r}: {status}, {self.text.strip()!r} "
            f"and not {expected!r}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRun:
    """One life of the server.

    Attributes:
        fault: why it did not become healthy; empty if it did. If it is set, nothing below was
            observed but the log.
        start_seconds: how long it took to become healthy, or until that was given up.
        models: what ``/v1/models`` lists.
        models_error: what it answered instead of a list.
        answers: its answers to the questions.
        exit_code: how it ended after SIGTERM.
        stop_seconds: how long that took.
        log_tail: the last lines of its log.
    """

    fault: str
    start_seconds: float
    models: tuple[str, ...] = ()
    models_error: str = ""
    answers: tuple[Answer, ...] = ()
    exit_code: int | None = None
    stop_seconds: float = 0.0
    log_tail: str = ""


def observe(engine: Engine, image: ImageInfo, *, folder: Path, patience: Patience) -> ServerRun:
    """Serve the tiny model from ``image`` and ask it questions.

    The model is written to ``folder``.
    """
    container = engine.start(
        image.ref,
        ARGUMENTS,
        platform=image.platform,
        env=ENVIRONMENT,
        mounts=[(tiny_model.write(folder), MODEL_FOLDER)],
        publish=PORT,
        shm_size=SHM_SIZE,
    )
    try:
        return _live(container, patience)
    finally:
        container.remove()


def _live(container: RunningContainer, patience: Patience) -> ServerRun:
    began = time.monotonic()
    with requests.Session() as session:
        # No proxy between here and the loopback address.
        session.trust_env = False
        client = Client(
            session=session, url=f"http://127.0.0.1:{container.host_port}", patience=patience
        )
        fault = _wait(container, client, patience)
        start_seconds = time.monotonic() - began
        if fault:
            return ServerRun(fault=fault, start_seconds=start_seconds, log_tail=_tail(container))
        models, models_error = client.models()
        answers = (
            *(client.completion(question) for question in tiny_model.COMPLETIONS),
            *(client.chat(question) for question in tiny_model.CHATS),
            *(client.stream(question) for question in tiny_model.CHATS),
        )
    log_tail = _tail(container)
    asked = time.monotonic()
    exit_code = container.stop(patience.stop)
    return ServerRun(
        fault="",
        start_seconds=start_seconds,
        models=models,
        models_error=models_error,
        answers=answers,
        exit_code=exit_code,
        stop_seconds=time.monotonic() - asked,
        # A clean end writes many lines that say nothing about the answers before it.
        log_tail=_tail(container) if exit_code else log_tail,
    )


def _wait(container: RunningContainer, client: Client, patience: Patience) -> str:
    """Wait until the server is healthy; the reason if it does not become so."""
    began = reported = time.monotonic()
    while not client.healthy():
        now = time.monotonic()
        if not container.alive():
            return f"the container ended after {now - began:.0f} s"
        if now - began > patience.start:
            return f"not healthy after {now - began:.0f} s"
        if now - reported > 15:
            reported = now
            ui.say(
                f"  server: {now - began:.0f} s, not healthy yet: "
                f"{(_tail(container, 1) or 'no log')[:160]}"
            )
        time.sleep(patience.poll)
    return ""


def _tail(container: RunningContainer, lines: int = LOG_LINES) -> str:
    return "\n".join(container.logs().strip().splitlines()[-lines:])


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """Asks one OpenAI-compatible server; whatever goes wrong becomes part of the answer."""

    session: requests.Session
    url: str
    patience: Patience

    def healthy(self) -> bool:
        """Whether ``/health`` says 200."""
        try:
            return (
                self.session.get(f"{self.url}/health", timeout=self.patience.answer).status_code
                == 200
            )
        except requests.RequestException:
            return False

    def models(self) -> tuple[tuple[str, ...], str]:
        """The names that ``/v1/models`` lists, and the error if there is no list."""
        try:
            response = self.session.get(f"{self.url}/v1/models", timeout=self.patience.answer)
            return tuple(str(entry["id"]) for entry in response.json()["data"]), ""
        except (requests.RequestException, ValueError, KeyError, TypeError) as error:
            return (), f"{type(error).__name__}: {error}"

    def completion(self, question: tiny_model.Question) -> Answer:
        """The continuation of the prompt."""
        body = {"prompt": question.prompt}
        return self._ask(
            "completion",
            "completions",
            question,
            body,
            lambda reply: reply.json()["choices"][0]["text"],
        )

    def chat(self, question: tiny_model.Question) -> Answer:
        """The answer to the prompt as a user's message, through the chat template."""
        return self._ask("chat", "chat/completions", question, _message(question), _content)

    def stream(self, question: tiny_model.Question) -> Answer:
        """The same as server-sent events."""
        body = {**_message(question), "stream": True}
        return self._ask("stream", "chat/completions", question, body, _deltas)

    def _ask(
        self,
        kind: str,
        path: str,
        question: tiny_model.Question,
        body: dict[str, Any],
        read: Callable[[requests.Response], object],
    ) -> Answer:
        began = time.monotonic()
        status: int | None = None
        try:
            response = self.session.post(
                f"{self.url}/v1/{path}",
                json={**body, "model": MODEL_NAME, "temperature": 0, "max_tokens": 8},
                timeout=self.patience.answer,
            )
            status = response.status_code
            text = str(read(response)) if status == 200 else response.text[:300]
        except (requests.RequestException, ValueError, KeyError, IndexError, TypeError) as error:
            text = f"{type(error).__name__}: {error}"
        return Answer(
            kind=kind, question=question, status=status, text=text, seconds=time.monotonic() - began
        )


def _message(question: tiny_model.Question) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question.prompt}]}


def _content(reply: requests.Response) -> object:
    return reply.json()["choices"][0]["message"]["content"]


def _deltas(reply: requests.Response) -> str:
    """The text of all events, which must end with ``[DONE]``."""
    events = [
        line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: ")
    ]
    if not events or events.pop() != "[DONE]":
        raise ValueError(f"the stream ends without [DONE]: {reply.text[-200:]!r}")
    return "".join(
        json.loads(event)["choices"][0]["delta"].get("content") or "" for event in events
    )
