"""Where imagefactory keeps things, and what it takes from the environment.

Resolved once, then passed on.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Folders of this machine, and where it gets wheels from.

    Attributes:
        state: what must outlive a run: receipts, the private engine, logs (XDG state).
        cache: what can be made again: downloaded sources, proof results (XDG cache).
        indexes: simple indexes, first match wins, as uv reads them.
        find_links: local wheel folders (pip's ``find-links``).
        ca_bundle: the machine's CA bundle for steps that download, or None for the image's own.
    """

    state: Path
    cache: Path
    indexes: tuple[str, ...]
    find_links: tuple[Path, ...]
    ca_bundle: Path | None

    @property
    def receipts(self) -> Path:
        """Folder of the receipts."""
        return self.state / "receipts"

    @property
    def logs(self) -> Path:
        """Folder of the build logs, one file a cell."""
        return self.state / "logs"


DEFAULT_INDEX = "https://pypi.org/simple"


def from_environment(environ: Mapping[str, str]) -> Settings:
    """Settings from XDG, pip's and uv's own variables.

    ``PIP_FIND_LINKS``/``UV_FIND_LINKS`` name wheel folders, ``UV_DEFAULT_INDEX``/``PIP_INDEX_URL``
    the main index, ``UV_INDEX`` and ``PIP_EXTRA_INDEX_URL`` more of them, ``SSL_CERT_FILE`` the CA
    bundle.
    """
    home = Path(environ.get("HOME") or Path.home())
    state = Path(environ.get("XDG_STATE_HOME") or home / ".local" / "state") / "imagefactory"
    cache = Path(environ.get("XDG_CACHE_HOME") or home / ".cache") / "imagefactory"
    main = environ.get("UV_DEFAULT_INDEX") or environ.get("PIP_INDEX_URL") or DEFAULT_INDEX
    more = [*environ.get("UV_INDEX", "").split(), *environ.get("PIP_EXTRA_INDEX_URL", "").split()]
    folders = [
        *environ.get("UV_FIND_LINKS", "").replace(",", " ").split(),
        *environ.get("PIP_FIND_LINKS", "").split(),
    ]
    bundle = environ.get("SSL_CERT_FILE")
    return Settings(
        state=state,
        cache=cache,
        indexes=tuple(dict.fromkeys([main, *more])),
        find_links=tuple(
            dict.fromkeys(Path(folder) for folder in folders if Path(folder).is_dir())
        ),
        ca_bundle=Path(bundle) if bundle and os.path.isfile(bundle) else None,  # noqa: PTH113
    )
