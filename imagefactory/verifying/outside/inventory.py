"""What locked wheels contain, from the wheels themselves: hashes, sizes and modes of their files.

A wheel on this machine is compared with its locked hash. Of any other one, the index that lists the
locked hash is asked for RECORD and the list of members, by ranged reads. What was found is kept in
the cache folder by the hash of the wheel.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import zipfile
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from configparser import ConfigParser
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeVar

from imagefactory.errors import FactoryError, SetupError, fail
from imagefactory.locking import indexes, remote_wheel, wheelhouse
from imagefactory.locking.lock import Wheel
from imagefactory.settings import Settings
from imagefactory.system import files

THREADS = 16
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Member:
    """One file of a wheel; ``sha256`` is empty if RECORD does not have it."""

    sha256: str
    size: int
    executable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """What a wheel contains.

    Attributes:
        name: the project.
        files: its members by path.
        folders: members that are folders.
        scripts: ``module:function`` of each console script, by name.
        ghosts: files that RECORD lists and the wheel does not have.
        sizes: what RECORD says of files that have another size.
    """

    name: str
    files: Mapping[str, Member]
    folders: tuple[str, ...]
    scripts: Mapping[str, str]
    ghosts: tuple[str, ...] = ()
    sizes: Mapping[str, str] = field(default_factory=dict)


class Wheels:
    """The locked wheels that an image is judged by."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._folder = settings.cache / "inventories"
        self._urls: dict[str, str] = {}

    def inventories(self, wheels: Iterable[Wheel]) -> dict[str, Inventory]:
        """The inventory of each wheel by its hash. Raises SetupError if one is not available."""
        wanted = {wheel.sha256: wheel for wheel in wheels}
        found = {sha: one for sha in wanted if (one := self._load(sha))}
        left = [wheel for sha, wheel in wanted.items() if sha not in found]
        self._look_up(left)
        with ThreadPoolExecutor(THREADS) as pool:
            for wheel, made in zip(left, pool.map(self._read, left), strict=True):
                found[wheel.sha256] = made
                self._save(wheel.sha256, made)
        return found

    def content(self, wheel: Wheel, name: str) -> bytes:
        """One file of a wheel. Raises SetupError if the wheel or the file is not available."""
        self._look_up([wheel])

        def read(archive: zipfile.ZipFile) -> bytes:
            return archive.read(name)

        return self._with(wheel, read)

    def _read(self, wheel: Wheel) -> Inventory:
        return self._with(wheel, lambda archive: read(wheel.name, archive))

    def _with(self, wheel: Wheel, use: Callable[[zipfile.ZipFile], Result]) -> Result:
        import requests  # noqa: PLC0415 - takes a twentieth of a second to load
        from remotezip import RemoteZipError  # noqa: PLC0415 - as above

        try:
            path = self._local(wheel)
            if path is None:
                return remote_wheel.use(wheel, self._urls[wheel.sha256], self._settings, use)
            with zipfile.ZipFile(path) as archive:
                return use(archive)
        except (
            *remote_wheel.DAMAGED,
            requests.RequestException,
            RemoteZipError,
            KeyError,
            ValueError,
            OSError,
        ) as error:
            what = f"{wheel.filename} is not available: {type(error).__name__}: {error}"
            fix = "check the indexes: imagefactory doctor"
            raise fail(SetupError, "wheel-unreachable", what, fix=fix) from None

    def _local(self, wheel: Wheel) -> Path | None:
        if wheel.is_built or wheel.has_address:
            path = wheelhouse.file_of(wheel, self._settings)
            return indexes.local(wheel, [path.parent])
        kept = wheelhouse.path_of(wheel.sha256, wheel.filename, self._settings).parent
        return indexes.local(wheel, [*self._settings.find_links, kept])

    def _look_up(self, wheels: Iterable[Wheel]) -> None:
        """Find the URLs of wheels that are not on this machine."""
        left = [w for w in wheels if w.sha256 not in self._urls and not self._is_here(w)]
        indexes.urls(left, self._settings, self._urls.__setitem__)

    def _is_here(self, wheel: Wheel) -> bool:
        try:
            return self._local(wheel) is not None
        except FactoryError:
            return False

    def _load(self, sha256: str) -> Inventory | None:
        try:
            row = json.loads((self._folder / f"{sha256}.json").read_text(encoding="utf-8"))
            members = {path: Member(*fields) for path, fields in row["files"].items()}
            lists = {name: tuple(row[name]) for name in ("folders", "ghosts")}
            # notes of former versions have no sizes
            return Inventory(**{**row, "files": members, **lists, "sizes": row["sizes"]})
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def _save(self, sha256: str, made: Inventory) -> None:
        members = {path: [m.sha256, m.size, m.executable] for path, m in made.files.items()}
        row = json.dumps({**asdict(made), "files": members})
        files.keep(self._folder / f"{sha256}.json", row)


def read(name: str, archive: zipfile.ZipFile) -> Inventory:
    """The inventory of a wheel. Raises KeyError or ValueError for what is not a wheel."""
    infos = archive.infolist()
    records = (
        info.filename
        for info in infos
        if info.filename.endswith(".dist-info/RECORD") and info.filename.count("/") == 1
    )
    inside = next(records, "").partition("/")[0]
    record = archive.read(f"{inside}/RECORD").decode()
    rows = [row for row in csv.reader(io.StringIO(record, newline="")) if row]
    signed = [row for row in rows if len(row) == 3 and row[1].startswith("sha256=")]
    hashes = {row[0]: _hex(row[1]) for row in signed}
    claims = {row[0]: row[2] for row in signed}
    names = {info.filename for info in infos}
    text = (
        archive.read(f"{inside}/entry_points.txt") if f"{inside}/entry_points.txt" in names else b""
    )
    members = {
        info.filename: Member(
            hashes.get(info.filename, ""), info.file_size, bool(info.external_attr >> 16 & 0o111)
        )
        for info in infos
        if not info.is_dir()
    }
    folders = tuple(info.filename.rstrip("/") for info in infos if info.is_dir())
    listed = {row[0] for row in rows}
    return Inventory(
        name=name,
        files=members,
        folders=folders,
        scripts=_scripts(text.decode()),
        ghosts=tuple(sorted(listed - set(members))),
        sizes={
            path: claims[path]
            for path, member in members.items()
            if claims.get(path, str(member.size)) != str(member.size)
        },
    )


def _hex(field: str) -> str:
    """The hash of a row in RECORD, as hex."""
    text = field.removeprefix("sha256=")
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).hex()


def _scripts(text: str) -> dict[str, str]:
    """The console scripts in the text of an ``entry_points.txt``."""
    parser = ConfigParser(delimiters=("=",), interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(text)
    return {
        name: value.partition("[")[0].strip()
        for section in ("console_scripts", "gui_scripts")
        if parser.has_section(section)
        for name, value in parser.items(section)
    }


def sha256(data: bytes) -> str:
    """SHA-256 in hex."""
    return hashlib.sha256(data).hexdigest()
