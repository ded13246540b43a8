"""Sends requests to an OpenAI-compatible server, and notes when the parts of an answer arrive."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from imagefactory.benchmarking.trace import Trace
from imagefactory.errors import CheckFailedError, InputError, SetupError, fail
from imagefactory.system import web

if TYPE_CHECKING:
    from requests import Response, Session

Clock = Callable[[], float]
#: Requests at the same time, each of which keeps its connection.
MOST_AT_ONCE = 1024
#: Seconds until a connection.
CONNECT = 10.0
#: Characters of an error of a server that are shown.
SHOWN = 300
#: Bytes of an answer at which it counts as broken.
MOST_BYTES = 1 << 28
#: Tokens of prompts that vLLM took from its prefix cache.
_HITS = re.compile(
    r"^vllm:prefix_cache_hits_total(?:\{[^}]*\})? ([0-9.]{1,20}(?:e[+-]?[0-9]{1,2})?)$",
    re.MULTILINE,
)
#: No answer has more tokens.
_MOST_TOKENS = 1 << 30
#: What servers call the text of a part of a chat's answer.
_REASONING = "reasoning", "reasoning_content"


class StreamError(Exception):
    """A stream that is no whole answer."""


class Server:
    """A server, for any number of threads.

    ``url`` is its address, with or without ``/v1``; ``key`` is an API key, if it wants one, and
    ``seconds`` how long it may be silent. Requests that run fail when ``stop`` is set.
    """

    def __init__(
        self, url: str, *, key: str | None, seconds: float, clock: Clock = time.perf_counter
    ) -> None:
        self.url = url
        self.stop = threading.Event()
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._timeout = (CONNECT, seconds)
        self._clock = clock

    def models(self) -> tuple[str, ...]:
        """The models that are served. Raises SetupError if nothing like a server answers."""
        import requests  # noqa: PLC0415 - takes 50 ms to load

        url = f"{self.url}/v1/models"
        try:
            with self._prepared("GET", url)() as answer:
                if answer.status_code != 200:
                    raise self._no_server(f"answers HTTP {answer.status_code}: {_said(answer)}")
                return tuple(str(row["id"]) for row in answer.json()["data"])
        except requests.RequestException as error:
            raise self._no_server(f"does not answer: {_brief(error)}") from None
        except (ValueError, LookupError, TypeError):
            raise self._no_server("answers something other than a list of models") from None

    def _no_server(self, why: str) -> Exception:
        fix = "name a server that runs, as in http://127.0.0.1:8000; OPENAI_API_KEY is its key"
        return fail(SetupError, "bench-no-server", f"{self.url}/v1/models {why}", fix=fix)

    def prefix_hits(self) -> float | None:
        """Tokens that vLLM has taken from its prefix cache so far; None if it does not say."""
        found = _HITS.findall(web.text_of(f"{self.url}/metrics") or "")
        return sum(float(number) for number in found) if found else None

    def complete(self, model: str, prompt: str, tokens: int, *, salt: str) -> Trace:
        """Continue ``prompt`` by exactly so many tokens."""
        body = {
            "prompt": prompt,
            "max_tokens": tokens,
            "ignore_eos": True,  # of vLLM, as is cache_salt: others pass over them
            "cache_salt": salt,
        }
        return self._ask("/v1/completions", model, body)

    def chat(self, model: str, prompt: str, tokens: int, *, salt: str) -> Trace:
        """Answer ``prompt`` with so many tokens at most."""
        body = {
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": tokens,
            "cache_salt": salt,
        }
        return self._ask("/v1/chat/completions", model, body)

    def _ask(self, path: str, model: str, body: Mapping[str, Any]) -> Trace:
        import requests  # noqa: PLC0415 - as above

        asked = {
            "model": model,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **body,
        }
        send = self._prepared("POST", self.url + path, asked)
        started = self._clock()
        try:
            with send() as answer:
                if answer.status_code != 200:
                    error = f"HTTP {answer.status_code}: {_said(answer)}"
                    return Trace(started=started, error=error)
                return read(self._parts(answer), self._clock, started)
        except (requests.RequestException, StreamError) as error:
            return Trace(started=started, error=_brief(error))

    def _prepared(
        self, method: str, url: str, body: Mapping[str, Any] | None = None
    ) -> Callable[[], Response]:
        """A function that sends a request; what takes time before that is done here."""
        import requests  # noqa: PLC0415 - as above

        made = requests.Request(method, url, json=body, headers=self._headers)
        request = self._session.prepare_request(made)
        options = self._session.merge_environment_settings(url, {}, True, None, None)
        return lambda: self._session.send(request, timeout=self._timeout, **options)

    @cached_property
    def _session(self) -> Session:
        import requests  # noqa: PLC0415 - as above
        from requests.adapters import HTTPAdapter  # noqa: PLC0415

        made = requests.Session()
        for scheme in ("http://", "https://"):
            made.mount(scheme, HTTPAdapter(pool_maxsize=MOST_AT_ONCE))
        return made

    def _parts(self, answer: Response) -> Iterator[bytes]:
        size = 0
        for part in answer.iter_content(None):
            size += len(part)
            if self.stop.is_set() or size > MOST_BYTES:
                raise StreamError("stopped" if self.stop.is_set() else "an answer without end")
            yield part


def address(text: str) -> str:
    """The address of a server that a person wrote, without ``/v1``. Raises InputError."""
    try:
        parts = urlsplit(text)
        fine = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fine = False
    if not fine or parts.query or parts.fragment or parts.username:
        fix = "write http://HOST:PORT; the API key goes into OPENAI_API_KEY"
        raise fail(InputError, "bench-url", f"{text!r} is not the address of a server", fix=fix)
    return text.rstrip("/").removesuffix("/v1").rstrip("/")


def read(parts: Iterable[bytes], clock: Clock, started: float) -> Trace:
    """The trace of a streamed answer. Raises StreamError if that is not whole.

    A part of a completion counts when it has a choice, even one of empty text: a special token is
    a token. A part of a chat counts when it has text, as the first one only names the role.
    """
    arrived: list[float] = []
    text: list[str] = []
    usage: Mapping[str, Any] = {}
    ended = False
    for event in _events(parts):
        ended = ended or event == "[DONE]"
        if ended:
            continue  # to its end, or the connection could not be used again
        row = _parsed(event)
        if row.get("error"):
            raise StreamError(f"error in mid-stream: {_message(row['error'])}")
        usage = row.get("usage") or usage
        try:
            said = _said_by(row)
        except (AttributeError, TypeError):
            what = f"an event that is no part of an answer: {event[:SHOWN]}"
            raise StreamError(what) from None
        arrived += [clock() for _ in said]
        text += said
    if not ended:
        raise StreamError(f"the stream broke off after {len(arrived)} parts")
    prompt_tokens, output_tokens = _counted(usage, len(arrived))
    return Trace(
        started=started,
        arrived=tuple(arrived),
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        text="".join(text),
    )


def _said_by(row: Mapping[str, Any]) -> list[str]:
    """The text of each choice in an event, as far as it counts."""
    found = []
    for choice in row.get("choices") or ():
        delta = choice.get("delta")
        said = delta.get("content") if delta is not None else choice.get("text")
        if delta is None or said or any(delta.get(name) for name in _REASONING):
            found.append("" + (said or ""))
    return found


def _counted(usage: object, parts: int) -> tuple[int, int]:
    """Tokens of the prompt and of the answer."""
    names = ("prompt_tokens", "completion_tokens")
    prompt, output = (usage.get(n) if isinstance(usage, Mapping) else None for n in names)
    if type(prompt) is not int or type(output) is not int:
        raise StreamError("the server sent no usage, so its tokens are not known")
    if not parts:
        raise StreamError("no token arrived")
    if not (0 < prompt < _MOST_TOKENS and 0 < output < _MOST_TOKENS):
        what = f"{prompt!r:.20} tokens of the prompt and {output!r:.20} of the answer"
        raise StreamError(f"the server counts {what}")
    return prompt, output


def _events(parts: Iterable[bytes]) -> Iterator[str]:
    """The data of server-sent events; an event may be split among parts, or share one."""
    rest = b""
    for part in parts:
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].decode(errors="replace").strip()


def _parsed(event: str) -> dict[str, Any]:
    try:
        row = json.loads(event)
    except (ValueError, RecursionError):
        row = None
    if not isinstance(row, dict):
        raise StreamError(f"an event that is not a JSON object: {event[:SHOWN]}")
    return row


def check_key(text: str | None) -> str | None:
    """An API key as it can be sent. Raises InputError, which does not show it."""
    if text is not None and not re.fullmatch(r"[!-~]*", text):
        what = "OPENAI_API_KEY has a space, an end of line or a character beyond ASCII"
        raise fail(InputError, "bench-key", what, fix="set it to the key alone")
    return text


def check_model(wanted: str | None, models: tuple[str, ...]) -> str:
    """The model to ask: ``wanted``, or the first one. Raises InputError, CheckFailedError."""
    if not models:
        raise fail(CheckFailedError, "bench-no-model", "the server serves no model")
    if wanted is not None and wanted not in models:
        what, fix = f"{wanted} is not served", f"--model {models[0]}; served: {', '.join(models)}"
        raise fail(InputError, "bench-model", what, fix=fix)
    return wanted or models[0]


def _said(answer: Response) -> str:
    """The error in an answer, in short."""
    import requests  # noqa: PLC0415 - as above

    try:
        text = next(answer.iter_content(1 << 16), b"").decode(errors="replace")
    except requests.RequestException as error:
        return _brief(error)
    try:
        return _message(json.loads(text)["error"])
    except (ValueError, LookupError, TypeError, RecursionError):
        return _line(text)


def _message(error: object) -> str:
    found = error.get("message", error) if isinstance(error, dict) else error
    return _line(str(found))


def _line(text: str) -> str:
    return " ".join(text.split())[:SHOWN]


def _brief(error: Exception) -> str:
    text = str(error)
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return "its certificate is not trusted; REQUESTS_CA_BUNDLE=FILE names the one that is"
    if "Connection refused" in text:
        return "connection refused"
    if "timed out" in text:
        return "timed out"
    return text[:SHOWN] or type(error).__name__
