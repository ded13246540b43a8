"""Asks a server in a container, which has no network, and believes nothing that it answers.

Every answer has a deadline as a whole and a size that is read at most.
"""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

from imagefactory.system.text import shorten
from imagefactory.verifying.answers import (
    FIRST,
    Answer,
    Refusal,
    Said,
    UnansweredError,
    parse,
    read,
)
from imagefactory.verifying.models.words import Question

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
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
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
#: Characters of a refusal that are read.
REFUSAL = 5000
#: Tokens that an answer may have; the longest right one has eight.
MOST_TOKENS = 16

Dial = Callable[[], AbstractContextManager[socket.socket]]


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
            return tuple(str(entry["id"]) for entry in parse(text)["data"]), ""
        except (UnansweredError, LookupError, TypeError) as error:
            return (), f"{type(error).__name__}: {error}"[:SHOWN]

    def ask(self, kind: str, question: Question, *, when: str = FIRST) -> Answer:
        """The answer to one question; ``Answer`` lists the kinds."""
        body: dict[str, Any] = {"model": self._model, "temperature": 0, "max_tokens": MOST_TOKENS}
        if kind == "completion":
            path = "/v1/completions"
            body |= {"prompt": question.prompt, "logprobs": 1}
        else:
            messages = [{"role": "user", "content": question.prompt}]
            path = "/v1/chat/completions"
            body |= {"messages": messages, "logprobs": True, **question.extra}
        if kind.endswith("stream"):
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        began = time.monotonic()
        status: int | None = None
        said = Said(text="")
        try:
            status, text = self._request("POST", path, body)
            said = read(kind, text) if status == 200 else Said(text=text)
        except UnansweredError as error:
            said = Said(text=str(error))
        except (LookupError, TypeError, AttributeError) as error:
            said = Said(text=_shape(error))
        return Answer(
            kind=kind,
            question=question,
            status=status,
            text=shorten(said.text, SHOWN),  # what is left out shows: it is no right answer
            seconds=time.monotonic() - began,
            when=when,
            finish=said.finish[:SHOWN],
            logprobs=said.logprobs,
            fault=said.fault,
        )

    def count_tokens(self, prompt: str, most: int) -> int:
        """How many tokens an answer of ``most`` tokens really has; 0 if there is none."""
        body = {"model": self._model, "prompt": prompt, "max_tokens": most}
        try:
            _, text = self._request(
                "POST", "/v1/completions", {**body, "temperature": 0, "ignore_eos": True}
            )
            return int(parse(text)["usage"]["completion_tokens"])
        except (UnansweredError, LookupError, TypeError, ValueError, OverflowError):
            return 0

    def counters(self, names: Collection[str]) -> dict[str, float]:
        """The counters ``names`` of ``/metrics``, added up; {} if there is no answer."""
        found: dict[str, float] = {}
        with suppress(UnansweredError):
            _, text = self._request("GET", "/metrics")
            for line in text.splitlines():
                name, value = line.partition("{")[0].split(" ")[0], line.rpartition(" ")[2]
                if name in names:
                    with suppress(ValueError):
                        found[name] = found.get(name, 0.0) + float(value)
        return found

    def misuse(self, fault: str, body: Mapping[str, Any]) -> Refusal:
        """What comes back for a completion that cannot be made, as ``body`` is part of it."""
        asked = {"model": self._model, "prompt": "the", "max_tokens": 1, **body}
        try:
            status, text = self._request("POST", "/v1/completions", asked)
        except UnansweredError as error:
            return Refusal(request=fault, status=None, text=str(error)[:SHOWN])
        self.close()  # vLLM 0.22 closes it after some refusals, and does not say so
        return Refusal(request=fault, status=status, text=text[:REFUSAL])

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


def _shape(error: Exception) -> str:
    return f"JSON of another shape than expected: {type(error).__name__}: {error}"
