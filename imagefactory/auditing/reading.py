"""Reads the shared libraries of locked wheels, from this machine or by ranged requests.

What was found is kept in the cache folder by the hash of the wheel, so a library is read once.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zipfile
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from imagefactory.auditing.elf import Import, Library, UnreadableError, read
from imagefactory.auditing.gpu_code import GpuCode
from imagefactory.errors import SetupError, fail
from imagefactory.locking import indexes, remote_wheel, wheelhouse
from imagefactory.locking.lock import Wheel
from imagefactory.settings import Settings
from imagefactory.system import files, index_errors

#: Written into the path of what is kept: another format is another folder.
FORMAT = "1"
#: Libraries are unpacked on as many threads, lists of members are only waited for.
THREADS, LISTING = 4, 16
_SHARED = re.compile(r"\.so(\.[0-9.]+)?$")
#: Folders of a wheel that are installed into site-packages, without this part of the path.
_IN_SITE = re.compile(r"^[^/]+\.data/(?:purelib|platlib)/")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Member:
    """A shared library in a wheel, by its path; ``size`` is that of the compressed bytes."""

    wheel: Wheel
    path: str
    size: int

    @property
    def name(self) -> str:
        """The name of the file."""
        return self.path.rpartition("/")[2]

    @property
    def stem(self) -> str:
        """The name without its version: ``libcublas``."""
        return self.name.partition(".so")[0]

    @property
    def installed(self) -> str:
        """Its path in site-packages."""
        return _IN_SITE.sub("", self.path)


class Reader:
    """Reads wheels; ``downloaded`` counts the bytes of the libraries that were requested.

    With ``whole``, wheels whose libraries are read are downloaded and kept, as a build needs them.
    """

    def __init__(self, settings: Settings, *, whole: bool = False) -> None:
        self._settings, self.whole = settings, whole
        self._folder = settings.cache / "audits" / FORMAT
        self._urls: dict[str, str] = {}
        self.downloaded = 0

    def members(self, wheels: Iterable[Wheel]) -> dict[str, tuple[Member, ...]]:
        """The shared libraries of each wheel by its hash.

        Raises SetupError for a wheel that cannot be read.
        """
        wanted = {wheel.sha256: wheel for wheel in wheels}
        found = {
            sha: kept for sha, one in wanted.items() if (kept := self._listed(one)) is not None
        }
        left = [wheel for sha, wheel in wanted.items() if sha not in found]
        self._look_up(left)
        with ThreadPoolExecutor(LISTING) as pool:
            for wheel, rows in zip(left, pool.map(self._list, left), strict=True):
                found[wheel.sha256] = rows
        return found

    def libraries(self, members: Iterable[Member]) -> dict[Member, Library]:
        """The content of ``members``. Raises SetupError for one that cannot be read."""
        wanted = dict.fromkeys(members)
        found = {member: kept for member in wanted if (kept := self._kept(member))}
        left = sorted((m for m in wanted if m not in found), key=lambda member: -member.size)
        wheels = list({member.wheel.sha256: member.wheel for member in left}.values())
        if self.whole:
            with wheelhouse.Collection(self._settings) as fetched:
                fetched.fetch(wheels)
                for wheel in wheels:
                    fetched.path(wheel)
        else:
            self._look_up(wheels)
        with ThreadPoolExecutor(THREADS) as pool:
            found |= zip(left, pool.map(self._read, left), strict=True)
        return found

    def _list(self, wheel: Wheel) -> tuple[Member, ...]:
        rows = self._with(
            wheel,
            lambda archive: {
                info.filename: info.compress_size
                for info in archive.infolist()
                if _SHARED.search(info.filename)
            },
        )
        write(self._path(wheel, "members"), rows)
        return tuple(Member(wheel, path, size) for path, size in rows.items())

    def _read(self, member: Member) -> Library:
        def library(archive: zipfile.ZipFile) -> Library:
            with archive.open(member.path) as file:
                return read(file.read)

        try:
            found = self._with(member.wheel, library)
        except UnreadableError as error:
            what = f"{member.path} of {member.wheel.filename} cannot be read: {error}"
            fix = "report it as an issue of imagefactory"
            raise fail(SetupError, "audit-unreadable", what, fix=fix) from None
        if self._local(member.wheel) is None:
            self.downloaded += member.size
        write(self._path(member.wheel, member.path), _as_dict(found))
        return found

    def _with(self, wheel: Wheel, use: Callable[[zipfile.ZipFile], Result]) -> Result:
        """What ``use`` makes of a wheel. Raises SetupError if it cannot be read."""
        import requests  # noqa: PLC0415 - takes 50 ms
        from remotezip import RemoteZipError  # noqa: PLC0415 - as above

        local = self._local(wheel)
        url = "" if local else self._urls[wheel.sha256]
        try:
            if local is None:
                return remote_wheel.use(wheel, url, self._settings, use)
            with zipfile.ZipFile(local) as archive:
                return use(archive)
        except requests.RequestException as error:
            raise SetupError(index_errors.of_request(url, error)) from None
        except UnreadableError:
            raise
        except (*remote_wheel.DAMAGED, RemoteZipError, LookupError, OSError, ValueError) as error:
            what = f"{wheel.filename} cannot be read: {error!r}"
            fix = "check the indexes: imagefactory doctor"
            raise fail(SetupError, "audit-unreadable", what, fix=fix) from None

    def _look_up(self, wheels: Iterable[Wheel]) -> None:
        """Find the URLs of wheels that are not on this machine."""
        left = []
        for wheel in wheels:
            if wheel.has_address:
                self._urls[wheel.sha256] = wheel.index
            elif wheel.sha256 not in self._urls and self._local(wheel) is None:
                left.append(wheel)
        indexes.urls(left, self._settings, self._urls.__setitem__)

    def _local(self, wheel: Wheel) -> Path | None:
        """The file on this machine, if it has the locked hash."""
        if wheel.is_built:
            return wheelhouse.file_of(wheel, self._settings)
        kept = wheelhouse.path_of(wheel.sha256, wheel.filename, self._settings).parent
        return indexes.local(wheel, [*self._settings.find_links, kept])

    def _path(self, wheel: Wheel, name: str) -> Path:
        short = hashlib.sha256(name.encode()).hexdigest()[:24]
        return self._folder / wheel.sha256 / f"{short}.json"

    def _listed(self, wheel: Wheel) -> tuple[Member, ...] | None:
        with suppress(OSError, ValueError, TypeError, AttributeError):
            rows = json.loads(self._path(wheel, "members").read_bytes())
            return tuple(Member(wheel, str(path), int(size)) for path, size in rows.items())
        return None

    def _kept(self, member: Member) -> Library | None:
        with suppress(OSError, ValueError, TypeError, KeyError):
            return _library(json.loads(self._path(member.wheel, member.path).read_bytes()))
        return None


def _as_dict(library: Library) -> dict[str, object]:
    return {
        **asdict(library),
        "imports": [[one.name, one.version, one.file] for one in library.imports],
        "exports": base64.b64encode(library.exports).decode(),
        "defines": sorted(library.defines),
    }


def _library(row: Mapping[str, object]) -> Library:
    """A library as it was kept. Raises KeyError, TypeError or ValueError for what is none."""
    known: dict[str, object] = dict(row)
    lists = {name: tuple(_rows(known[name])) for name in ("needed", "runpath")}
    versions = known["versions"]
    if not isinstance(versions, dict) or not isinstance(known["gpu"], dict):
        raise TypeError("damaged")
    return Library(
        machine=str(known["machine"]),
        soname=str(known["soname"]),
        imports=tuple(Import(*one) for one in _rows(known["imports"])),
        exports=base64.b64decode(str(known["exports"]), validate=True),
        defines=frozenset(_rows(known["defines"])),
        versions={file: tuple(names) for file, names in versions.items()},
        gpu=GpuCode(**known["gpu"]),
        **lists,
    )


def _rows(value: object) -> list[str]:
    if not isinstance(value, list):
        raise TypeError("damaged")
    return value


def write(path: Path, value: object) -> None:
    """Write JSON atomically, if possible: without it, the wheel is only read again."""
    files.keep(path, json.dumps(value))
