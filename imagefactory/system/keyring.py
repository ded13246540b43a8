"""Credentials of indexes in the machine's keyring, read as uv and pip read them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import urlsplit

from imagefactory.system import shell

#: A keyring may ask a person to unlock it.
SECONDS = 60


def is_wanted(environ: Mapping[str, str]) -> bool:
    """Whether the environment names the program ``keyring`` as a provider, for uv or pip."""
    names = ("UV_KEYRING_PROVIDER", "PIP_KEYRING_PROVIDER")
    return any(environ.get(name) == "subprocess" for name in names)


@lru_cache
def find(url: str) -> tuple[str, str] | None:
    """User and password for ``url``, or else for its host; None if the keyring has neither.

    Raises SetupError if there is no program ``keyring``, or it does not end.
    """
    for service in (url, urlsplit(url).netloc):
        argv = ["keyring", "--mode", "creds", "get", service]
        done = shell.run(argv, quiet=True, timeout=SECONDS)
        lines = done.out.splitlines()
        if done.ok and len(lines) == 2:
            return lines[0], lines[1]
    return None
