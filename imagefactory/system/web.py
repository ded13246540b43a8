"""HTTP requests, retried when a connection breaks.

The HTTP libraries take 50 ms to load, so they are imported only when a request is made.
"""

from __future__ import annotations

import hashlib
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import IO, TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit, urlunsplit
from weakref import WeakKeyDictionary

from imagefactory.errors import InputError, SetupError, fail
from imagefactory.system import ui

if TYPE_CHECKING:
    from requests import Session

CHUNK = 1 << 20
#: Seconds until a connection, and between two parts of an answer; uv's variables set others.
CONNECT, READ = 10.0, 30.0
#: How often a request is made once more; ``UV_HTTP_RETRIES`` sets another number.
RETRIES = 2
#: Seconds until a person is informed of what is waited for.
PATIENCE = 5.0
#: Seconds until that is said again of the same host.
AGAIN = 30.0
_SAID: dict[str, float] = {}
_GUARD = threading.Lock()
Answer = TypeVar("Answer")
Failed = TypeVar("Failed", bound=Exception)
#: Seconds that a server may ask to wait for before it is asked again.
LONGEST_WAIT = 30.0
_WAITS: WeakKeyDictionary[Exception, float] = WeakKeyDictionary()


def without_account(url: str) -> str:
    """``url`` without the credentials that it may contain."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def host_of(url: str) -> str:
    """The host of ``url``, with its port."""
    return urlsplit(url).netloc.rpartition("@")[2]


def timeout() -> tuple[float, float]:
    """Seconds until a connection, and between two parts of an answer."""
    return (
        _number("UV_HTTP_CONNECT_TIMEOUT", CONNECT, 0.1, 3600),
        _number("UV_HTTP_TIMEOUT", READ, 0.1, 3600),
    )


def retries() -> int:
    """How often a request is made once more."""
    return int(_number("UV_HTTP_RETRIES", RETRIES, 0, 100))


def _number(name: str, default: float, least: float, most: float) -> float:
    """A variable's number. Raises InputError for what is none, or out of bounds."""
    text = os.environ.get(name) or str(default)
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not least <= found <= most:
        what, fix = f"{name} is {text[:40]!r}", f"write a number from {least:g} to {most:g}"
        raise fail(InputError, "bad-variable", what, where="environment", fix=fix)
    return found


def uv_environment() -> dict[str, str]:
    """The variables that bound uv's requests in the same way."""
    connect, read = timeout()
    return {
        "UV_HTTP_TIMEOUT": str(max(1, round(read))),
        "UV_HTTP_CONNECT_TIMEOUT": str(max(1, round(connect))),
        "UV_HTTP_RETRIES": str(retries()),
    }


@contextmanager
def waiting(url: str) -> Iterator[None]:
    """Say which host is waited for, if the block takes long; once for all that wait for it."""
    timer = threading.Timer(PATIENCE, _say_waiting, [host_of(url)])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _say_waiting(host: str) -> None:
    now = time.monotonic()
    with _GUARD:
        recent = now - _SAID.get(host, -AGAIN) < AGAIN
        if not recent:
            _SAID[host] = now
    if not recent:
        ui.say(f"waiting for {host} ...")


@lru_cache(maxsize=1)
def _session() -> Session:
    """One session for all threads: a new one for each request takes 60 ms, and a connection."""
    import requests  # noqa: PLC0415 - see the module's docstring
    from requests.adapters import HTTPAdapter  # noqa: PLC0415

    made = requests.Session()
    for scheme in ("http://", "https://"):
        made.mount(scheme, HTTPAdapter(pool_maxsize=32))
    return made


def with_retries(request: Callable[[], Answer]) -> Answer:
    """Call ``request``, and again if the connection fails or breaks halfway."""
    import requests  # noqa: PLC0415 - see the module's docstring
    import stamina  # noqa: PLC0415

    stamina.instrumentation.set_on_retry_hooks([])  # by default it logs its own event names
    broken = (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError)

    def again(error: Exception) -> bool | float:
        if not isinstance(error, broken):
            return False
        wait = _WAITS.get(error, 0.0)
        return wait <= LONGEST_WAIT and (wait or True)

    return stamina.retry(on=again, attempts=1 + retries(), wait_max=2.0)(request)()


def asked_to_wait(error: Failed, after: str | None) -> Failed:
    """``error`` of a server that says when to ask again (``Retry-After``, in seconds).

    ``with_retries`` waits that long, and does not ask again if that is too long.
    """
    if after and after.isascii() and after.isdigit() and len(after) < 9:
        _WAITS[error] = float(after)
    return error


def within(seconds: float, work: Callable[[], Answer]) -> Answer:
    """What ``work`` returns or raises, if it ends within ``seconds``.

    The time-outs of HTTP libraries start again with every byte. Raises requests' Timeout; the work
    is then abandoned in its thread.
    """
    import requests  # noqa: PLC0415 - see the module's docstring

    done: Future[Answer] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised where the result is wanted
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    try:
        return done.result(seconds)
    except FutureTimeoutError:
        if done.done():
            raise
        raise requests.Timeout(f"no complete answer within {seconds:.0f} s (timeout)") from None


def download(
    url: str, file: IO[bytes], *, code: str, account: tuple[str, str] | None = None
) -> str:
    """Download ``url`` into ``file``, and return the content's SHA-256 in hex.

    ``account`` is user and password. A retry starts over. Raises SetupError with ``code`` if it
    fails.
    """
    import requests  # noqa: PLC0415

    def save() -> str:
        digest = hashlib.sha256()
        file.seek(0)
        file.truncate()
        with _session().get(url, stream=True, timeout=timeout(), auth=account) as answer:
            answer.raise_for_status()
            for chunk in answer.iter_content(CHUNK):
                digest.update(chunk)
                file.write(chunk)
        return digest.hexdigest()

    try:
        with waiting(url):
            return with_retries(save)
    except requests.RequestException as error:
        from imagefactory.system import index_errors  # noqa: PLC0415 - imports this module

        found = index_errors.of_request(url, error)
        raise fail(SetupError, code, found.what, fix=found.fix) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """What a server answered; ``retry_after`` is the header of that name, or empty."""

    status: int
    content: bytes
    retry_after: str


def get(url: str, most: int) -> Response:
    """The answer to a request for ``url``, whatever its status, with up to ``most`` + 1 bytes.

    Raises requests' exceptions if there is none.
    """
    with _session().get(url, stream=True, timeout=timeout()) as answer:
        content = bytearray()
        for chunk in answer.iter_content(CHUNK):
            content += chunk
            if len(content) > most:
                break
        return Response(
            status=answer.status_code,
            content=bytes(content[: most + 1]),
            retry_after=answer.headers.get("retry-after", ""),
        )


def text_of(url: str, account: tuple[str, str] | None = None) -> str | None:
    """The text at ``url``, for look-ups that have an alternative; None if there is none.

    ``account`` is user and password.
    """
    import requests  # noqa: PLC0415

    try:
        with waiting(url):
            answer = _session().get(url, timeout=timeout(), auth=account)
    except requests.RequestException:
        return None
    return answer.content.decode("utf-8", "replace") if answer.ok else None


def size_of(url: str, account: tuple[str, str] | None = None) -> int:
    """The size of the file at ``url`` in bytes, from a HEAD request; 0 if the server omits it.

    ``account`` is user and password. Raises SetupError if it cannot be reached.
    """
    import requests  # noqa: PLC0415

    try:
        with waiting(url):
            answer = with_retries(
                lambda: _session().head(url, timeout=timeout(), allow_redirects=True, auth=account),
            )
    except requests.RequestException as error:
        from imagefactory.system import index_errors  # noqa: PLC0415 - imports this module

        raise SetupError(index_errors.of_request(url, error)) from None
    return int(answer.headers.get("content-length", 0))


def answers(url: str, account: tuple[str, str] | None = None) -> bool:
    """Whether a HEAD request to ``url`` succeeds; ``account`` is user and password."""
    import requests  # noqa: PLC0415

    try:
        return _session().head(url, timeout=timeout(), allow_redirects=True, auth=account).ok
    except requests.RequestException:
        return False


def is_up(url: str) -> bool:
    """Whether the host of ``url`` answers a HEAD request, whatever it says."""
    import requests  # noqa: PLC0415

    try:
        _session().head(url, timeout=timeout())
    except requests.RequestException:
        return False
    return True
