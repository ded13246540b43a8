"""The files of locked Debian packages, from a cache, a folder, a mirror or a snapshot."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from imagefactory.errors import Problem, SetupError
from imagefactory.locking import wheelhouse
from imagefactory.locking.debian.archive import account_for, mirror
from imagefactory.locking.lock import Deb
from imagefactory.settings import SNAPSHOT, Debian, Settings
from imagefactory.system import temporary, ui, web

THREADS = 8
UBUNTU_SNAPSHOT = "https://snapshot.ubuntu.com"
#: States of a day in the archive of old packages: its last one, its first one, and those between,
#: as archives change every six hours. A package may have been replaced on the day of its lock.
_TIMES = ("235959", "000000", "180000", "120000", "060000")


def fetch(debs: Sequence[Deb], day: str, settings: Settings) -> list[Path]:
    """The files of ``debs``, in their order; missing ones are downloaded, and kept by their hash.

    ``day`` is the day on which they were locked (``YYYY-MM-DD``). Raises SetupError that names
    every package that is not available anywhere.
    """
    paths = [_path(deb, settings) for deb in debs]
    missing = [deb for deb, path in zip(debs, paths, strict=True) if not path.is_file()]
    if missing:
        sources = _Sources(day, settings.debian)
        with (
            ui.step(f"downloading {len(missing)} Debian packages"),
            ThreadPoolExecutor(THREADS) as pool,
        ):
            got = list(pool.map(lambda deb: _obtain(deb, sources, settings), missing))
        gone = [deb for deb, found in zip(missing, got, strict=True) if not found]
        if gone:
            raise SetupError(_gone(deb, sources) for deb in gone)
    return paths


def missing(debs: Iterable[tuple[Deb, str]], settings: Settings) -> list[Problem]:
    """A problem for every package that no folder, mirror or snapshot has any more.

    ``debs`` are packages with the day on which they were locked. Nothing is downloaded.
    """
    days = {deb.sha256: (deb, day) for deb, day in debs}
    sources = {day: _Sources(day, settings.debian) for _, day in days.values()}

    def is_gone(row: tuple[Deb, str]) -> bool:
        deb, day = row
        urls = sources[day].of(deb)
        return local(deb, settings.debian) is None and not any(
            web.answers(url, account_for(url, settings.debian)) for url in urls
        )

    with ThreadPoolExecutor(THREADS) as pool:
        gone = list(pool.map(is_gone, days.values()))
    rows = [row for row, one in zip(days.values(), gone, strict=True) if one]
    return [_gone(deb, sources[day]) for deb, day in sorted(rows, key=lambda row: row[0].path)]


def local(deb: Deb, debian: Debian) -> Path | None:
    """The file of ``deb`` in one of the local folders, if it has its hash; else None."""
    saved_by_apt = f"{deb.name}_{deb.version.replace(':', '%3a')}_{deb.arch}.deb"
    for folder in debian.folders:
        for name in (deb.filename, saved_by_apt):
            path = folder / name
            if path.is_file() and wheelhouse.sha_of(path) == deb.sha256:
                return path
    return None


def _path(deb: Deb, settings: Settings) -> Path:
    return settings.cache / "debs" / deb.sha256 / deb.filename


class _Sources:
    """The URLs where packages that were locked on ``day`` may be."""

    def __init__(self, day: str, debian: Debian) -> None:
        self._day, self._debian = day.replace("-", ""), debian
        self._up: dict[str, bool] = {}
        self._lock = threading.Lock()

    def of(self, deb: Deb) -> list[str]:
        """Where the file of ``deb`` may be, best first; only on hosts that answer."""
        snapshot = _snapshot(deb, self._debian)
        dated = f"{snapshot}/{deb.archive}/{self._day}"
        roots = {
            mirror(deb.archive, self._debian): [mirror(deb.archive, self._debian)],
            snapshot: [f"{dated}T{time}Z" for time in _TIMES],
        }
        return [
            f"{url}/{deb.path}" for root, urls in roots.items() if self._is_up(root) for url in urls
        ]

    def searched(self, deb: Deb) -> str:
        """What has been searched for ``deb``, for a person."""
        roots = (mirror(deb.archive, self._debian), _snapshot(deb, self._debian))
        shown = [root if self._is_up(root) else f"{root} (no answer)" for root in roots]
        return ", ".join([*map(str, self._debian.folders), *shown])

    def _is_up(self, root: str) -> bool:
        with self._lock:  # whoever comes second need not wait for a timeout again
            if root not in self._up:
                self._up[root] = web.is_up(f"{root}/")
            return self._up[root]


def _snapshot(deb: Deb, debian: Debian) -> str:
    """The archive of old packages that has those of the archive of ``deb``."""
    is_ubuntu = deb.archive.startswith("ubuntu") and debian.snapshot == SNAPSHOT
    return UBUNTU_SNAPSHOT if is_ubuntu else debian.snapshot


def _obtain(deb: Deb, sources: _Sources, settings: Settings) -> bool:
    """Put the file of ``deb`` into the cache; whether it was found."""
    target = _path(deb, settings)
    target.parent.mkdir(parents=True, exist_ok=True)
    found = local(deb, settings.debian)
    with temporary.folder(prefix="imagefactory-deb-", parent=target.parent) as folder:
        part = folder / target.name
        if found:
            shutil.copyfile(found, part)
        elif not any(_download(url, part, deb, settings.debian) for url in sources.of(deb)):
            return False
        part.replace(target)
    return True


def _download(url: str, part: Path, deb: Deb, debian: Debian) -> bool:
    """Download ``url``; whether it is the file of ``deb``."""
    account = account_for(url, debian)
    try:
        with part.open("wb") as file:
            found = web.download(url, file, code="debian-unreachable", account=account)
            return found == deb.sha256
    except SetupError:
        return False


def _gone(deb: Deb, sources: _Sources) -> Problem:
    searched = sources.searched(deb)
    return Problem(
        code="debian-gone",
        where=f"{deb.name} {deb.version}",
        what=f"its file (sha256 {deb.sha256[:16]}…) was not found; searched {searched}",
        fix=(
            "lock newer packages: imagefactory lock --upgrade-base; or put "
            f"{deb.filename} into a folder that IMAGEFACTORY_DEBS names"
        ),
    )
