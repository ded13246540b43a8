"""Reads the package indexes of Debian's archives, and verifies their signatures."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import lzma
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path

from imagefactory.errors import CheckFailedError, SetupError, fail
from imagefactory.settings import Debian, split_account
from imagefactory.system import files, web

_APT = Path("/etc/apt")
_VERSION = re.compile(rb"(?m)^Package: (\S+)\n(?:(?!Version: )\S.*\n|[ \t].*\n)*Version: (\S+)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """A distribution whose archives are read.

    Attributes:
        keys: the OpenPGP keys that sign its archives.
        parts: of a suite: the archive, and its folder below ``dists``.
        ports: the archive of an architecture that has one of its own.
        components: of its archives.
        named_by: the field of InRelease that has the folder's name.
    """

    keys: Path
    parts: tuple[tuple[str, str], ...]
    components: tuple[str, ...]
    named_by: str
    ports: Mapping[str, str] = field(default_factory=dict)


#: By ID in os-release.
DISTRIBUTIONS = {
    "debian": Distribution(
        # those of Debian 12 and 13, as in the package debian-archive-keyring
        keys=Path(__file__).with_name("debian-archive-keys.asc"),
        parts=(
            ("debian", "{}"),
            ("debian", "{}-updates"),
            ("debian-security", "{}-security"),
        ),
        components=("main",),
        named_by="Codename",
    ),
    "ubuntu": Distribution(
        # that of 2018, as in the package ubuntu-keyring
        keys=Path(__file__).with_name("ubuntu-archive-keys.asc"),
        parts=(("ubuntu", "{}"), ("ubuntu", "{}-updates"), ("ubuntu", "{}-security")),
        components=("main", "universe"),
        named_by="Suite",
        ports={"arm64": "ubuntu-ports"},
    ),
}
_DEFAULTS = {
    "debian": "http://deb.debian.org/debian",
    "debian-security": "http://deb.debian.org/debian-security",
    "ubuntu": "http://archive.ubuntu.com/ubuntu",
    "ubuntu-ports": "http://ports.ubuntu.com/ubuntu-ports",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """A package index: the text of a ``Packages`` file, and the archive that it is from."""

    archive: str
    text: bytes


def mirror(archive: str, debian: Debian, apt: Path = _APT) -> str:
    """The URL of ``archive``: of the settings, else of the machine's own apt, else Debian's.

    It has no credentials: see ``account_for``.
    """
    chosen = dict(debian.mirrors).get(archive)
    return chosen or split_account(_mirror_of_apt(archive, apt) or _DEFAULTS[archive])[0]


def account_for(url: str, debian: Debian, apt: Path = _APT) -> tuple[str, str] | None:
    """User and password for ``url``, if it is below an archive whose URL came with them."""
    found = dict(debian.accounts)
    for archive in _DEFAULTS:
        root, account = split_account(_mirror_of_apt(archive, apt) or "")
        if account:
            found.setdefault(root, account)
    return next((one for root, one in found.items() if f"{url}/".startswith(f"{root}/")), None)


def _mirror_of_apt(archive: str, apt: Path) -> str | None:
    pattern = re.compile(rf"(?m)^(?!\s*#).*?(https?://\S+/{re.escape(archive)})/?(?:\s|$)")
    lists = [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*"))]
    for path in lists:
        if path.suffix in (".list", ".sources") and path.is_file():
            found = pattern.search(path.read_text(encoding="utf-8", errors="replace"))
            if found:
                return found[1]
    return None


def indexes(
    suite: str, architectures: Sequence[str], debian: Debian, *, distribution: str = "debian"
) -> dict[str, list[Index]]:
    """The package indexes of a suite, its updates and security updates, by architecture.

    ``distribution`` is a key of ``DISTRIBUTIONS``. Raises SetupError if an archive is not
    reachable, CheckFailedError if a file is not signed with a trusted key, has expired, or is of
    another suite.
    """
    of = DISTRIBUTIONS[distribution]
    parts = _parts(suite, architectures, of)
    with ThreadPoolExecutor(len(parts)) as pool:
        found = pool.map(lambda part: _part(part[0], part[1], parts[part], of, debian), parts)
        rows = [row for part in found for row in part]
    return {arch: [index for one, index in rows if one == arch] for arch in architectures}


def versions(suite: str, arch: str, debian: Debian, kept: Path) -> dict[str, list[str]]:
    """The versions of every package that a Debian suite, its updates and security updates have.

    What was read of an index is kept in ``kept`` by its hash, so that only the small signed files
    are downloaded again. Raises the errors of ``indexes``.
    """
    of = DISTRIBUTIONS["debian"]
    parts = _parts(suite, [arch], of)
    found: dict[str, list[str]] = {}
    with ThreadPoolExecutor(len(parts)) as pool:
        for rows in pool.map(lambda part: _versions(part, arch, of, debian, kept), parts):
            for name, version in rows.items():
                found.setdefault(name, []).append(version)
    return found


def _versions(
    part: tuple[str, str], arch: str, of: Distribution, debian: Debian, kept: Path
) -> dict[str, str]:
    """The version of every package of one part, an archive and a codename."""
    url, hashes = _release(*part, of, debian)
    (component,) = of.components
    folder = f"{component}/binary-{arch}"
    path = kept / f"{hashes.get(f'{folder}/Packages.xz', 'none')}.json"
    try:
        rows: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
        if all(isinstance(version, str) for version in rows.values()):
            return rows
    except (OSError, ValueError, AttributeError, RecursionError):
        pass
    text = _packages(url, folder, hashes, debian)
    rows = {n.decode(): v.decode() for n, v in _VERSION.findall(text)}
    files.keep(path, json.dumps(rows))  # lists of two architectures may be one, such as no list
    return rows


def _parts(
    suite: str, architectures: Sequence[str], of: Distribution
) -> dict[tuple[str, str], list[str]]:
    """The parts of a suite, each an archive and a codename, with the architectures in it."""
    parts: dict[tuple[str, str], list[str]] = {}
    for arch in architectures:
        for archive, codename in of.parts:
            part = of.ports.get(arch, archive), codename.format(suite)
            parts.setdefault(part, []).append(arch)
    return parts


def _part(
    archive: str, codename: str, architectures: Sequence[str], of: Distribution, debian: Debian
) -> list[tuple[str, Index]]:
    """The indexes of one part, each with its architecture."""
    url, hashes = _release(archive, codename, of, debian)
    return [
        (arch, Index(archive=archive, text=_packages(url, f"{name}/binary-{arch}", hashes, debian)))
        for arch in architectures
        for name in of.components
    ]


def _release(
    archive: str, codename: str, of: Distribution, debian: Debian
) -> tuple[str, dict[str, str]]:
    """The URL of a part, and the hashes in its signed InRelease file."""
    url = f"{mirror(archive, debian)}/dists/{codename}"
    release = _verified(_get(f"{url}/InRelease", debian), url, debian.keys or of.keys)
    _check(release, codename, url, of)
    return url, _hashes(release)


def _packages(url: str, folder: str, hashes: Mapping[str, str], debian: Debian) -> bytes:
    """The text of the package index in ``folder``."""
    name = f"{folder}/Packages.xz"
    if name not in hashes:
        what = f"{url} has no packages for {folder.rpartition('-')[2]}"
        raise fail(CheckFailedError, "debian-no-architecture", what, fix="choose another suite")
    sha256 = hashes[name]
    data = _get(f"{url}/{folder}/by-hash/SHA256/{sha256}", debian)
    if hashlib.sha256(data).hexdigest() != sha256:
        what = f"{url}/{name} does not have the hash that InRelease gives"
        fix = "try again later: the mirror may be in the middle of an update"
        raise fail(CheckFailedError, "debian-index-changed", what, fix=fix)
    return lzma.decompress(data)


def _get(url: str, debian: Debian) -> bytes:
    file = io.BytesIO()
    web.download(url, file, code="debian-unreachable", account=account_for(url, debian))
    return file.getvalue()


def _verified(signed: bytes, url: str, keys: Path) -> str:
    """The signed part of an InRelease file, if it is signed with a trusted key."""
    from pysequoia import Cert, verify  # noqa: PLC0415 - only needed to lock

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


def _check(release: str, codename: str, url: str, of: Distribution) -> None:
    """Raise CheckFailedError if ``release`` is of another suite, or a mirror stopped updating."""
    fields = dict(line.split(": ", 1) for line in release.splitlines() if re.match(r"\S+: ", line))
    if fields.get(of.named_by) != codename:
        what = f"{url} is {fields.get(of.named_by, 'of no suite')}, not {codename}"
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
