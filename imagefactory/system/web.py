"""The gateway to servers: what is asked of them is asked again when a connection breaks.

Its libraries take a twentieth of a second to load, which a command that asks no server does not
spend.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import IO, TypeVar

from imagefactory.errors import SetupError, fail

CHUNK = 1 << 20
SECONDS = 60
Answer = TypeVar("Answer")


def patiently(ask: Callable[[], Answer]) -> Answer:
    """What ``ask`` returns, asked up to three times if the connection breaks.

    On the way or half through.
    """
    import requests  # noqa: PLC0415 - as the module says
    import stamina  # noqa: PLC0415

    stamina.instrumentation.set_on_retry_hooks([])  # by default it logs its own event names
    broken = (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError)
    return stamina.retry(on=broken, attempts=3)(ask)()


def download(url: str, file: IO[bytes], *, code: str) -> str:
    """Write what ``url`` is into ``file``, from its start; the SHA-256 of it.

    Raises SetupError, as ``code``.
    """
    import requests  # noqa: PLC0415

    def save() -> str:
        digest = hashlib.sha256()
        file.seek(0)
        file.truncate()
        with requests.get(url, stream=True, timeout=SECONDS) as answer:
            answer.raise_for_status()
            for chunk in answer.iter_content(CHUNK):
                digest.update(chunk)
                file.write(chunk)
        return digest.hexdigest()

    try:
        return patiently(save)
    except requests.RequestException as error:
        fix = "check the address and the network: imagefactory doctor"
        raise fail(SetupError, code, f"{url}: {error}", fix=fix) from None


def answers(url: str) -> bool:
    """Whether there is anything at ``url``."""
    import requests  # noqa: PLC0415

    try:
        return requests.head(url, timeout=SECONDS, allow_redirects=True).ok
    except requests.RequestException:
        return False
