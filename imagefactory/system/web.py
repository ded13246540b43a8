"""HTTP requests, retried when a connection breaks.

The HTTP libraries take 50 ms to load, so they are imported only when a request is made.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import IO, TypeVar

from imagefactory.errors import SetupError, fail

CHUNK = 1 << 20
#: Seconds.
TIMEOUT = 60
Answer = TypeVar("Answer")


def with_retries(request: Callable[[], Answer]) -> Answer:
    """Call ``request``, up to three times if the connection fails or breaks halfway."""
    import requests  # noqa: PLC0415 - see the module's docstring
    import stamina  # noqa: PLC0415

    stamina.instrumentation.set_on_retry_hooks([])  # by default it logs its own event names
    broken = (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError)
    return stamina.retry(on=broken, attempts=3)(request)()


def download(url: str, file: IO[bytes], *, code: str) -> str:
    """Download ``url`` into ``file``, and return the content's SHA-256 in hex.

    A retry starts over. Raises SetupError with ``code`` if it fails.
    """
    import requests  # noqa: PLC0415

    def save() -> str:
        digest = hashlib.sha256()
        file.seek(0)
        file.truncate()
        with requests.get(url, stream=True, timeout=TIMEOUT) as answer:
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


def answers(url: str) -> bool:
    """Whether a HEAD request to ``url`` succeeds."""
    import requests  # noqa: PLC0415

    try:
        return requests.head(url, timeout=TIMEOUT, allow_redirects=True).ok
    except requests.RequestException:
        return False


def is_up(url: str) -> bool:
    """Whether the host of ``url`` answers a HEAD request, whatever it says."""
    import requests  # noqa: PLC0415

    try:
        requests.head(url, timeout=TIMEOUT)
    except requests.RequestException:
        return False
    return True
