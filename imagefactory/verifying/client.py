"""Asks a server in a container, which has no network, and believes nothing that it answers.

Every answer has a deadline as a whole and a size that is read at most.
"""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from imagefactory.verifying.models import words

#: The Python of an image.
PYTHON = "/opt/venv/bin/python"
#: Relays its standard input and output to a port of the loopback address, for which it waits.
RELAY = """\
import os, select, socket, sys, time
port, end = int(sys.argv[1]), time.monotonic() + float(sys.argv[2])
while True:
    try:
        peer = socket.create_connection(("127.0.0.1", port), 5)
        break
    except OSError:
        if time.monotonic() > end:
            sys.exit(1)
        time.sleep(0.1)
peer.settimeout(None)
while True:
    for ready in select.select([0, peer], [], [])[0]:
        data = os.read(0, 65536) if ready == 0 else peer.recv(65536)
        if not data:
            sys.exit()
        if ready == 0:
            peer.sendall(data)
        while ready != 0 and data:
            data = data[os.write(1, data):]
"""
#: Bytes of an answer that are read; those of a good server have less than a thousand.
MOST_BYTES = 1 << 20
#: Characters of an answer that are shown.
SHOWN = 300
#: When a question was asked: at the beginning.
FIRST = "asked first"

Dial = Callable[[], AbstractContextManager[socket.socket]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The server's answer to one question.

    Attributes:
        kind: ``completion``, ``chat`` or ``stream``.
        question: the question, with the answer that is right.
        status: HTTP status, None if there was no response.
        text: the answer's text, or what came instead of one.
        seconds: how long it took.
        when: ``FIRST``, or under which circumstances it was asked again.
    """

    kind: str
    question: words.Question
    status: int | None
    text: str
    seconds: float
    when: str = FIRST

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
            f"{self.kind} {self.question.prompt!r}, {self.when}: {status}, "
            f"{self.text.strip()!r} and not {expected!r}"
        )


class UnansweredError(Exception):
    """There was no answer, or none that can be read; the text says why."""


class Client:
    """Asks one OpenAI-compatible server; whatever goes wrong becomes part of the answer.

    ``dial`` opens a connection, ``model`` is the name of the model, and ``seconds`` the time that
    an answer may take. Connections are kept until ``close``. Not for several threads.
    """

    def __init__(self, dial: Dial, *, model: str, seconds: float) -> None:
        self._dial = dial
        self._model = model
        self._seconds = seconds
        self._open: AbstractContextManager[socket.socket] | None = None
        self._http: http.client.HTTPConnection | None = None

    def close(self) -> None:
        """Close the connection; the next question opens another one."""
        opened, self._open, self._http = self._open, None, None
        if opened is not None:
            opened.__exit__(None, None, None)

    def healthy(self) -> bool:
        """Whether ``/health`` says 200."""
        try:
            return self._request("GET", "/health")[0] == 200
        except UnansweredError:
            return False

    def models(self) -> tuple[tuple[str, ...], str]:
        """The names that ``/v1/models`` lists, and the error if there is no list."""
        try:
            _, text = self._request("GET", "/v1/models")
            return tuple(str(entry["id"]) for entry in _json(text)["data"]), ""
        except (UnansweredError, LookupError, TypeError) as error:
            return (), f"{type(error).__name__}: {error}"[:SHOWN]

    def ask(self, kind: str, question: words.Question, *, when: str = FIRST) -> Answer:
        """The answer to one question: ``completion``, ``chat`` or ``stream``."""
        body: dict[str, Any] = {"model": self._model, "temperature": 0, "max_tokens": 8}
        if kind == "completion":
            path, body = "/v1/completions", {**body, "prompt": question.prompt}
        else:
            messages = [{"role": "user", "content": question.prompt}]
            path, body = "/v1/chat/completions", {**body, "messages": messages}
        if kind == "stream":
            body["stream"] = True
        began = time.monotonic()
        status: int | None = None
        try:
            status, text = self._request("POST", path, body)
            said = str(_READERS[kind](text)) if status == 200 else text
        except (UnansweredError, LookupError, TypeError, AttributeError) as error:
            said = str(error) if isinstance(error, UnansweredError) else _shape(error)
        seconds = time.monotonic() - began
        return Answer(
            kind=kind,
            question=question,
            status=status,
            text=said[:SHOWN],
            seconds=seconds,
            when=when,
        )

    def _request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> tuple[int, str]:
        """Status and text. Raises UnansweredError."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} if data else {}
        done = False
        try:
            connection = self._connection()
            with _deadline(connection.sock, self._seconds):
                connection.request(method, path, body=data, headers=headers)
                answer = connection.getresponse()
                text = answer.read(MOST_BYTES + 1)
            if len(text) > MOST_BYTES:
                raise UnansweredError(f"an answer of more than {MOST_BYTES} bytes")
            done = not answer.will_close
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise UnansweredError(f"{type(error).__name__}: {error}") from None
        finally:
            if not done:
                self.close()
        return answer.status, text.decode(errors="replace")

    def _connection(self) -> http.client.HTTPConnection:
        if self._http is None:
            opened = self._dial()
            connection = http.client.HTTPConnection("127.0.0.1")
            connection.auto_open = 0  # a connection that broke is not opened by other means
            connection.sock = opened.__enter__()
            self._open, self._http = opened, connection
        return self._http


@contextmanager
def _deadline(connection: socket.socket, seconds: float) -> Iterator[None]:
    """Cut the connection after ``seconds``, however little comes how often.

    Raises UnansweredError then, whatever the cut led to.
    """
    late = threading.Event()

    def cut() -> None:
        late.set()
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (OSError, http.client.HTTPException, ValueError):
        if not late.is_set():
            raise
    finally:
        timer.cancel()
    if late.is_set():
        raise UnansweredError(f"no end of the answer within {seconds:g} s")


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnansweredError(f"no JSON ({type(error).__name__}): {text[-200:]!r}") from None


def _shape(error: Exception) -> str:
    return f"JSON of another shape than expected: {type(error).__name__}: {error}"


def _completion(text: str) -> object:
    return _json(text)["choices"][0]["text"]


def _chat(text: str) -> object:
    return _json(text)["choices"][0]["message"]["content"]


def _stream(text: str) -> str:
    """The text of all events, which must end with ``[DONE]``."""
    events = [
        line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")
    ]
    if not events or events.pop() != "[DONE]":
        raise UnansweredError(f"the stream ends without [DONE]: {text[-200:]!r}")
    deltas = [_json(event)["choices"][0]["delta"] for event in events]
    return "".join(str(delta.get("content") or "") for delta in deltas)


_READERS: Mapping[str, Callable[[str], object]] = {
    "completion": _completion,
    "chat": _chat,
    "stream": _stream,
}
