"""Reads the package indexes of Debian's archives, and verifies their signatures."""

from __future__ import annotations

import hashlib
import io
import itertools
import lzma
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path

from imagefactory.errors import CheckFailedError, SetupError, fail
from imagefactory.settings import Debian
from imagefactory.system import web

#: The OpenPGP keys of Debian 12 and 13, as in the package debian-archive-keyring.
KEYS = Path(__file__).with_name("debian-archive-keys.asc")
ARCHIVES = ("debian", "debian-security")
DEFAULT = "http://deb.debian.org/{}"
_APT = Path("/etc/apt")
#: The parts of a suite: their archive, and their codename, which is their folder below ``dists``.
_PARTS = (
    ("debian", "{}"),
    ("debian", "{}-updates"),
    ("debian-security", "{}-security"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """A package index: the text of a ``Packages`` file, and the archive that it is from."""

    archive: str
    text: bytes


def mirror(archive: str, debian: Debian, apt: Path = _APT) -> str:
    """The URL of ``archive``: of the settings, else of the machine's own apt, else Debian's."""
    chosen = dict(debian.mirrors).get(archive)
    return chosen or _mirror_of_apt(archive, apt) or DEFAULT.format(archive)


def _mirror_of_apt(archive: str, apt: Path) -> str | None:
    pattern = re.compile(rf"(?m)^(?!\s*#).*?(https?://\S+/{re.escape(archive)})/?(?:\s|$)")
    lists = [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*"))]
    for path in lists:
        if path.suffix in (".list", ".sources") and path.is_file():
            found = pattern.search(path.read_text(encoding="utf-8", errors="replace"))
            if found:
                return found[1]
    return None


def indexes(suite: str, architectures: Sequence[str], debian: Debian) -> dict[str, list[Index]]:
    """The package indexes of a suite, its updates and security updates, by architecture.

    Raises SetupError if an archive is not reachable, CheckFailedError if a file is not signed with
    a trusted key, has expired, or is of another suite.
    """
    with ThreadPoolExecutor(len(_PARTS)) as pool:
        parts = list(pool.map(lambda part: _part(part, suite, architectures, debian), _PARTS))
    return {arch: [part[arch] for part in parts] for arch in architectures}


def _part(
    part: tuple[str, str], suite: str, architectures: Sequence[str], debian: Debian
) -> dict[str, Index]:
    archive, codename = part[0], part[1].format(suite)
    url = f"{mirror(archive, debian)}/dists/{codename}"
    release = _verified(_get(f"{url}/InRelease"), url, debian)
    _check(release, codename, url)
    hashes = _hashes(release)
    found = {}
    for arch in architectures:
        name = f"main/binary-{arch}/Packages.xz"
        if name not in hashes:
            what = f"{url} has no packages for {arch}"
            raise fail(CheckFailedError, "debian-no-architecture", what, fix="choose another suite")
        sha256 = hashes[name]
        data = _get(f"{url}/main/binary-{arch}/by-hash/SHA256/{sha256}")
        if hashlib.sha256(data).hexdigest() != sha256:
            what = f"{url}/{name} does not have the hash that InRelease gives"
            fix = "try again later: the mirror may be in the middle of an update"
            raise fail(CheckFailedError, "debian-index-changed", what, fix=fix)
        found[arch] = Index(archive=archive, text=lzma.decompress(data))
    return found


def _get(url: str) -> bytes:
    file = io.BytesIO()
    web.download(url, file, code="debian-unreachable")
    return file.getvalue()


def _verified(signed: bytes, url: str, debian: Debian) -> str:
    """The signed part of an InRelease file, if it is signed with a trusted key."""
    from pysequoia import Cert, verify  # noqa: PLC0415 - only needed to lock

    keys = debian.keys or KEYS
    try:
        trusted = Cert.split_file(str(keys))
    except (OSError, RuntimeError) as error:
        what = f"{keys} cannot be read: {str(error).splitlines()[0]}"
        fix = "set IMAGEFACTORY_DEBIAN_KEYS to a file with OpenPGP keys, or to nothing"
        raise fail(SetupError, "debian-keys", what, fix=fix) from None
    try:
        checked = verify(signed, store=lambda _: trusted)
    except RuntimeError as error:
        what = f"{url}/InRelease is not signed with a trusted key: {str(error).splitlines()[0]}"
        fix = f"use another mirror (IMAGEFACTORY_DEBIAN_MIRROR); the trusted keys are in {keys}"
        raise fail(CheckFailedError, "debian-untrusted", what, fix=fix) from None
    return (checked.bytes or b"").decode()


def _check(release: str, codename: str, url: str) -> None:
    """Raise CheckFailedError if ``release`` is of another suite, or a mirror stopped updating."""
    fields = dict(line.split(": ", 1) for line in release.splitlines() if re.match(r"\S+: ", line))
    if fields.get("Codename") != codename:
        what = f"{url} is {fields.get('Codename', 'of no suite')}, not {codename}"
        fix = "write the codename of a suite in matrix.yaml, and check the mirror"
        raise fail(CheckFailedError, "debian-other-suite", what, fix=fix)
    until = fields.get("Valid-Until")
    if until and parsedate_to_datetime(until) < datetime.now(UTC):
        what = f"{url}/InRelease expired on {until}"
        fix = "use a mirror that is updated: IMAGEFACTORY_DEBIAN_MIRROR"
        raise fail(CheckFailedError, "debian-expired", what, fix=fix)


def _hashes(release: str) -> dict[str, str]:
    """File -> SHA-256, from the section of that name."""
    section = release.partition("\nSHA256:")[2]
    rows = itertools.takewhile(lambda row: len(row) == 3, map(str.split, section.splitlines()[1:]))
    return {name: sha256 for sha256, _, name in rows}
