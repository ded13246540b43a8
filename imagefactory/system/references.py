"""Names of images: where a registry keeps what a reference names. Pure."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from urllib.parse import urlsplit

from imagefactory.errors import InputError, fail

#: Docker Hub answers at another address than its images are named by.
_HUB, HUB_API = "docker.io", "registry-1.docker.io"


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

    Raises InputError ``reference-wrong`` if it names nothing.
    """
    name, _, digest = reference.partition("@")
    first, _, rest = name.partition("/")
    host, path = (first, rest) if rest and _is_host(first) else (_HUB, name)
    head, colon, tag = path.rpartition(":")
    path, tag = (head, tag) if colon else (path, "latest")
    if not path:
        what, fix = f"{reference!r} is no image reference", "write HOST/REPOSITORY:TAG"
        raise fail(InputError, "reference-wrong", what, fix=fix)
    if host == _HUB:
        host, path = HUB_API, path if "/" in path else f"library/{path}"
    return Name(host=host, path=path, wanted=digest or tag)


def _is_host(text: str) -> bool:
    return "." in text or ":" in text or text == "localhost"


def is_loopback(host: str) -> bool:
    """Whether a host, with or without a port, is this machine."""
    bare = urlsplit(f"//{host}").hostname or ""
    try:
        return bare == "localhost" or ipaddress.ip_address(bare).is_loopback
    except ValueError:
        return False
