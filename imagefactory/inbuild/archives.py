"""Keeps the archives of wheels, so that each is downloaded once. Standard library only: it runs in
the builder.

``/archives`` is a cache that all builds share: ``SHA256/FILENAME``, nothing unpacked. An archive
that is missing there, or damaged, is downloaded from whichever index has a file with its hash. The
indexes are those of uv: UV_DEFAULT_INDEX and UV_INDEX.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from . import simple_index
from .simple_index import FAILURES, Client

ARCHIVES = Path("/archives")
#: Certificates for downloads: an optional secret of the build.
CA = Path("/run/secrets/ca")
#: User and password by the URL of an index, as JSON: another optional secret.
ACCOUNTS = Path("/run/secrets/indexes")
#: Wheels of one list that are downloaded at a time; layers are made in parallel.
AT_ONCE = 16
_LINE = re.compile(r"(?P<name>[^=\s]+)==(?P<version>\S+) --hash=sha256:(?P<sha256>[0-9a-f]{64})")


@dataclass(frozen=True)
class Pin:
    """A line of a list: one wheel, identified by its SHA-256."""

    name: str
    version: str
    sha256: str


def collect(listing: Path, mounted: Path | None = None) -> list[Path]:
    """The archives of all wheels that ``listing`` names; what is missing is downloaded.

    ``mounted`` may have wheels that no index has. Raises SystemExit if an archive is neither there
    nor on an index.
    """
    local = {_sha256(path): path for path in mounted.glob("*.whl")} if mounted else {}
    names = [os.environ.get("UV_DEFAULT_INDEX", ""), *os.environ.get("UV_INDEX", "").split()]
    indexes = simple_index.with_accounts([name for name in names if name], _accounts())

    def one(pin: Pin) -> Path:
        folder = ARCHIVES / pin.sha256
        return local.get(pin.sha256) or _kept(folder) or _download(client, pin, indexes, folder)

    with Client(CA) as client, ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(one, read(listing)))


def _accounts() -> dict[str, list[str]]:
    try:
        found: dict[str, list[str]] = json.loads(ACCOUNTS.read_text(encoding="utf-8") or "{}")
    except FileNotFoundError:
        return {}
    return found


def read(listing: Path) -> list[Pin]:
    """The lines of a list. Raises SystemExit for one that does not name a wheel by its hash."""
    found = []
    for line in listing.read_text(encoding="utf-8").splitlines():
        match = _LINE.fullmatch(line)
        if match is None:
            sys.exit(f"E: {listing}: expected NAME==VERSION --hash=sha256:HASH, not {line!r}")
        found.append(Pin(**match.groupdict()))
    return found


def _kept(folder: Path) -> Path | None:
    """The archive in ``folder``, which is named by its hash; a damaged one is removed."""
    for path in folder.glob("*.whl"):
        if _sha256(path) == folder.name:
            return path
        path.unlink(missing_ok=True)
    return None


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def _download(client: Client, pin: Pin, indexes: Sequence[str], folder: Path) -> Path:
    wheel = f"{pin.name} {pin.version} (sha256 {pin.sha256})"
    try:
        url = simple_index.find(client, pin.name, pin.sha256, indexes)
    except LookupError as error:
        sys.exit(f"E: {wheel} was not found: {error}")
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / unquote(urlsplit(url).path.rpartition("/")[2])
    with tempfile.NamedTemporaryFile(dir=folder, suffix=".part") as part:
        path = Path(part.name)
        try:
            simple_index.patiently(lambda: simple_index.append(client, url, path))
        except FAILURES as error:
            sys.exit(f"E: {simple_index.without_account(url)}: {error}")
        if _sha256(path) != pin.sha256:
            sys.exit(f"E: {simple_index.without_account(url)} is not {wheel}")
        # another build may have put the same file there meanwhile
        if not target.exists():
            os.link(path, target)
    return target
