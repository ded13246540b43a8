"""Settings of this machine, read from the environment once and passed on from there."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from imagefactory.errors import InputError, fail

#: Without an explicit scheme and host, uv would read it as a path or an option.
_INDEX = re.compile(r"https?://[^\s/-][^\s]*")
SNAPSHOT = "https://snapshot.debian.org/archive"


@dataclass(frozen=True, slots=True, kw_only=True)
class Debian:
    """Where Debian packages come from.

    Attributes:
        mirrors: pairs of an archive (``debian``, ``debian-security``) and the URL of its mirror,
            for those that are set; the others are those of the machine's own apt, or Debian's.
        snapshot: URL of the archive of old packages, by date.
        folders: local folders with packages.
        keys: OpenPGP keys to trust instead of Debian's; None for Debian's.
    """

    mirrors: tuple[tuple[str, str], ...] = ()
    snapshot: str = SNAPSHOT
    folders: tuple[Path, ...] = ()
    keys: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Folders of this machine, and where it gets wheels and Debian packages from.

    Attributes:
        state: folder for data that must be kept: receipts, the private engine, logs (XDG state).
        cache: folder for data that can be recreated: sources, proof results (XDG cache).
        indexes: simple indexes in the order of preference, as in uv.
        find_links: local wheel folders (pip's ``find-links``).
        ca_bundle: the machine's CA bundle for steps that download; None for the image's own.
        environ: the environment, for the credentials of indexes that the matrix names.
        named: URL of each such index, by name.
        debian: where Debian packages come from.
    """

    state: Path
    cache: Path
    indexes: tuple[str, ...]
    find_links: tuple[Path, ...]
    ca_bundle: Path | None
    environ: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    named: Mapping[str, str] = field(default_factory=dict, hash=False)

    def account_for(self, url: str) -> tuple[str, str] | None:
        """User and password for ``url``, if it is on the host of an index that has them.

        What ~/.netrc has is read by the HTTP libraries themselves.
        """
        host = urlsplit(url).netloc.rpartition("@")[2]
        for name, index in self.named.items():
            start = index_variable(name)
            user = self.environ.get(f"{start}_USERNAME")
            password = self.environ.get(f"{start}_PASSWORD")
            if urlsplit(index).netloc == host and (user or password):
                return user or "", password or ""
        for parts in map(urlsplit, self.indexes):
            if parts.username is not None and parts.netloc.rpartition("@")[2] == host:
                return unquote(parts.username), unquote(parts.password or "")
        return None

    debian: Debian = field(default_factory=Debian)

    @property
    def receipts(self) -> Path:
        """Folder of the verification receipts."""
        return self.state / "receipts"

    @property
    def logs(self) -> Path:
        """Folder of the build logs, one file per cell."""
        return self.state / "logs"


DEFAULT_INDEX = "https://pypi.org/simple"


def index_variable(name: str) -> str:
    """How the variables with the credentials of the index ``name`` start, as in uv."""
    return "UV_INDEX_" + re.sub(r"[^A-Z0-9]", "_", name.upper())


def from_environment(environ: Mapping[str, str]) -> Settings:
    """Settings from the variables of XDG, pip and uv.

    ``UV_DEFAULT_INDEX`` or ``PIP_INDEX_URL`` sets the main index, ``UV_INDEX`` and
    ``PIP_EXTRA_INDEX_URL`` add more, ``UV_FIND_LINKS`` and ``PIP_FIND_LINKS`` add wheel folders,
    and ``SSL_CERT_FILE`` sets the CA bundle. ``IMAGEFACTORY_DEBIAN_MIRROR``,
    ``IMAGEFACTORY_DEBIAN_SECURITY_MIRROR``, ``IMAGEFACTORY_DEBIAN_SNAPSHOT``,
    ``IMAGEFACTORY_DEBIAN_KEYS`` and ``IMAGEFACTORY_DEBS`` (folders) say where Debian packages
    come from. Raises InputError for an index that is not a URL.
    """
    home = Path(environ.get("HOME") or os.path.expanduser("~"))  # noqa: PTH111 - never fails
    state = Path(environ.get("XDG_STATE_HOME") or home / ".local" / "state") / "imagefactory"
    cache = Path(environ.get("XDG_CACHE_HOME") or home / ".cache") / "imagefactory"
    main = environ.get("UV_DEFAULT_INDEX") or environ.get("PIP_INDEX_URL") or DEFAULT_INDEX
    more = [*environ.get("UV_INDEX", "").split(), *environ.get("PIP_EXTRA_INDEX_URL", "").split()]
    folders = [
        *environ.get("UV_FIND_LINKS", "").replace(",", " ").split(),
        *environ.get("PIP_FIND_LINKS", "").split(),
    ]
    for index in [main, *more]:
        if not _INDEX.fullmatch(index):
            what = f"{index.rpartition('@')[2]!r} is not the URL of an index"
            fix = "set UV_DEFAULT_INDEX and UV_INDEX to URLs such as https://host/simple"
            raise fail(InputError, "index-url", what, where="environment", fix=fix)
    bundle = environ.get("SSL_CERT_FILE")
    return Settings(
        state=state,
        cache=cache,
        indexes=tuple(dict.fromkeys([main, *more])),
        find_links=tuple(
            dict.fromkeys(Path(folder) for folder in folders if Path(folder).is_dir())
        ),
        environ=environ,
        debian=_debian(environ),
        ca_bundle=Path(bundle) if bundle and os.path.isfile(bundle) else None,  # noqa: PTH113
    )


def _debian(environ: Mapping[str, str]) -> Debian:
    mirrors = {
        "debian": environ.get("IMAGEFACTORY_DEBIAN_MIRROR"),
        "debian-security": environ.get("IMAGEFACTORY_DEBIAN_SECURITY_MIRROR"),
    }
    keys = environ.get("IMAGEFACTORY_DEBIAN_KEYS")
    folders = environ.get("IMAGEFACTORY_DEBS", "").split(os.pathsep)
    return Debian(
        mirrors=tuple((archive, url.rstrip("/")) for archive, url in mirrors.items() if url),
        snapshot=(environ.get("IMAGEFACTORY_DEBIAN_SNAPSHOT") or SNAPSHOT).rstrip("/"),
        folders=tuple(Path(folder) for folder in folders if folder),
        keys=Path(keys) if keys else None,
    )
