"""Where registries keep what image references name. Pure."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from urllib.parse import urlsplit

from imagefactory.system import reference as references

#: Docker Hub answers at another address than its images are named by.
HUB_API = "registry-1.docker.io"


@dataclass(frozen=True, slots=True, kw_only=True)
class Name:
    """Where a registry keeps something: API host, repository path, and a tag or digest."""

    host: str
    path: str
    wanted: str

    @property
    def url(self) -> str:
        """The API's address of the repository: http on loopback, https elsewhere."""
        scheme = "http" if is_loopback(self.host) else "https"
        return f"{scheme}://{self.host}/v2/{self.path}"


def parse(reference: str) -> Name:
    """Where the image ``reference`` is, by the rules of Docker (``debian`` is on Docker Hub).

    Raises InputError ``reference-wrong`` if it is none.
    """
    found = references.parse(reference)
    host, path = found.host, found.path
    if host == references.HUB:
        host, path = HUB_API, path if "/" in path else f"library/{path}"
    return Name(host=host, path=path, wanted=found.digest or found.tag or "latest")


def is_loopback(host: str) -> bool:
    """Whether a host, with or without a port, is this machine."""
    bare = urlsplit(f"//{host}").hostname or ""
    try:
        return bare == "localhost" or ipaddress.ip_address(bare).is_loopback
    except ValueError:
        return False
