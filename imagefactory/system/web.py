"""HTTP requests, retried when a connection breaks.

The HTTP libraries take 50 ms to load, so they are imported only when a request is made.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import lru_cache
from typing import IO, TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit, urlunsplit

from imagefactory.errors import SetupError, fail

if TYPE_CHECKING:
    from requests import Session

CHUNK = 1 << 20
#: Seconds.
TIMEOUT = 60
Answer = TypeVar("Answer")


def without_account(url: str) -> str:
    """``url`` without the credentials that it may contain."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


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
    """Call ``request``, up to three times if the connection fails or breaks halfway."""
    import requests  # noqa: PLC0415 - see the module's docstring
    import stamina  # noqa: PLC0415

    stamina.instrumentation.set_on_retry_hooks([])  # by default it logs its own event names
    broken = (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError)
    return stamina.retry(on=broken, attempts=3)(request)()


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
        with _session().get(url, stream=True, timeout=TIMEOUT, auth=account) as answer:
            answer.raise_for_status()
            for chunk in answer.iter_content(CHUNK):
                digest.update(chunk)
                file.write(chunk)
        return digest.hexdigest()

    try:
        return with_retries(save)
    except requests.RequestException as error:
        fix = "check the URL and the network: imagefactory doctor"
        raise fail(SetupError, code, f"{url}: {error}", fix=fix) from None


def size_of(url: str, account: tuple[str, str] | None = None) -> int:
    """The size of the file at ``url`` in bytes, from a HEAD request; 0 if the server omits it.

    ``account`` is user and password. Raises SetupError if it cannot be reached.
    """
    import requests  # noqa: PLC0415

    try:
        answer = with_retries(
            lambda: _session().head(url, timeout=TIMEOUT, allow_redirects=True, auth=account),
        )
    except requests.RequestException as error:
        fix = "check the indexes: imagefactory doctor"
        raise fail(SetupError, "index-unreachable", f"{url}: {error}", fix=fix) from None
    return int(answer.headers.get("content-length", 0))


def answers(url: str, account: tuple[str, str] | None = None) -> bool:
    """Whether a HEAD request to ``url`` succeeds; ``account`` is user and password."""
    import requests  # noqa: PLC0415

    try:
        return _session().head(url, timeout=TIMEOUT, allow_redirects=True, auth=account).ok
    except requests.RequestException:
        return False


def is_up(url: str) -> bool:
    """Whether the host of ``url`` answers a HEAD request, whatever it says."""
    import requests  # noqa: PLC0415

    try:
        _session().head(url, timeout=TIMEOUT)
    except requests.RequestException:
        return False
    return True
