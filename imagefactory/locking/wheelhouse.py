"""A cache of files by hash: wheels given by URL, sources, and wheels that imagefactory built."""

from __future__ import annotations

import hashlib
import shutil
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Self

from imagefactory.errors import SetupError, fail
from imagefactory.locking import clone, gitref, indexes
from imagefactory.locking.lock import Wheel
from imagefactory.settings import Settings
from imagefactory.system import files, locks, temporary, ui, web

#: Wheels that are downloaded at a time.
AT_ONCE = 16


def fetch(url: str, sha256: str, filename: str, settings: Settings, *, shown: bool = True) -> Path:
    """The file with the given hash, downloaded if it is not cached.

    It is ``shown`` as a step. An interrupted download leaves no file. Raises SetupError if ``url``
    cannot be downloaded, or its content has changed.
    """
    target = path_of(sha256, filename, settings)
    target.parent.mkdir(parents=True, exist_ok=True)
    with locks.held(target.parent.with_name(f"{sha256}.lock"), filename):
        if not target.is_file():
            with ui.step(f"fetching {filename}") if shown else nullcontext():
                _download(url, sha256, target, settings)
    return target


def _download(url: str, sha256: str, target: Path, settings: Settings) -> None:
    with temporary.folder(prefix="imagefactory-download-", parent=target.parent) as folder:
        part = folder / target.name
        is_git = url.startswith("git+")
        found = _pack(url, part, settings) if is_git else _save(url, part, settings)
        if found != sha256:
            what = f"{url} has sha256 {found}, expected {sha256}"
            fix = "the file was replaced: ask its owner, or put the new hash into matrix.yaml"
            raise fail(SetupError, "wheel-changed", what, fix=fix)
        part.rename(target)


def _pack(url: str, path: Path, settings: Settings) -> str:
    """Pack what ``url`` names into ``path``; returns its SHA-256.

    It is ``git+REPOSITORY@COMMIT``, with ``+BASE..HEAD`` for each range that is merged into it.
    """
    repository, _, commits = url.removeprefix("git+").rpartition("@")
    commit, *ranges = commits.split("+")
    if ranges:
        clone.pack_merged(repository, commit, ranges, path, settings)
    else:
        gitref.pack(repository, commit, path)
    return sha_of(path)


def sha_of(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _save(url: str, path: Path, settings: Settings) -> str:
    """Download ``url`` to ``path``; returns its SHA-256."""
    with path.open("wb") as file:
        account = settings.account_for(url)
        return web.download(url, file, code="wheel-unreachable", account=account)


def path_of(sha256: str, filename: str, settings: Settings) -> Path:
    """The path of a cached file, whether it exists or not."""
    return settings.cache / "wheelhouse" / sha256 / filename


def file_of(wheel: Wheel, settings: Settings) -> Path:
    """The file of a wheel that is locked by URL, or that was built.

    Raises SetupError if it is not available.
    """
    if wheel.is_built:
        path = path_of(wheel.sha256, wheel.filename, settings)
        if not path.is_file():
            what = f"{wheel.filename} ({wheel.sha256[:16]}) was built on another machine"
            fix = "build it here, to the same bytes: imagefactory wheel"
            raise fail(SetupError, "wheel-not-here", what, fix=fix)
        return path
    return fetch(wheel.index, wheel.sha256, wheel.filename, settings)


def from_index(wheel: Wheel, settings: Settings) -> Path:
    """The file of a locked wheel, from the first wheel folder or index that has its hash.

    Raises SetupError if none does.
    """
    with Collection(settings) as files:
        files.fetch([wheel])
        return files.path(wheel)


class Collection:
    """The files of locked wheels, downloaded in parallel as far as they are not on this machine."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._found: dict[str, Future[Path]] = {}
        self._lock = threading.Lock()
        self._looking, self._pool = ThreadPoolExecutor(1), ThreadPoolExecutor(AT_ONCE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pool in (self._looking, self._pool):
            pool.shutdown(cancel_futures=True)

    def fetch(self, wheels: Iterable[Wheel]) -> None:
        """Begin to fetch ``wheels``, in this order; a download begins when its URL is known."""
        with self._lock:
            new = {one.sha256: one for one in wheels if one.sha256 not in self._found}
            self._found |= {sha: Future() for sha in new}
        if new:
            self._looking.submit(self._look_up, new)

    def path(self, wheel: Wheel) -> Path:
        """The file of a wheel, once it is there.

        Raises SetupError if it cannot be had; what no index has is reported together.
        """
        return self._found[wheel.sha256].result()

    def _look_up(self, wheels: Mapping[str, Wheel]) -> None:
        """Find each of ``wheels`` on this machine, at its own address or on an index."""
        left = dict(wheels)

        def begin(sha: str, url: str | None) -> None:
            if wheel := left.pop(sha, None):
                self._pool.submit(self._settle, wheel, url)

        try:
            for sha, wheel in wheels.items():
                if here := self._here(wheel):
                    del left[sha]
                    self._found[sha].set_result(here)
                elif _is_own(wheel):
                    begin(sha, None)
            indexes.urls(list(left.values()), self._settings, begin)
        except BaseException as error:  # noqa: BLE001 - raised where the file is wanted
            for sha in left:
                self._found[sha].set_exception(error)

    def _settle(self, wheel: Wheel, url: str | None) -> None:
        future = self._found[wheel.sha256]
        try:
            future.set_result(self._file(wheel, url))
        except BaseException as error:  # noqa: BLE001 - as above
            future.set_exception(error)

    def _here(self, wheel: Wheel) -> Path | None:
        """The file on this machine; a kept one that is damaged is removed, to be fetched again."""
        kept = path_of(wheel.sha256, wheel.filename, self._settings)
        found = indexes.local(wheel, [kept.parent, *self._settings.find_links])
        if found is None and not _is_own(wheel):
            kept.unlink(missing_ok=True)
        return found

    def _file(self, wheel: Wheel, url: str | None) -> Path:
        if url is None:
            path = file_of(wheel, self._settings)
            if sha_of(path) != wheel.sha256:
                what, fix = f"{path} is damaged", "remove it; it is fetched or built again"
                raise fail(SetupError, "wheel-damaged", what, fix=fix)
            return path
        return fetch(url, wheel.sha256, wheel.filename, self._settings, shown=False)


def _is_own(wheel: Wheel) -> bool:
    """Whether a wheel is from its own address, or was built."""
    return wheel.is_built or wheel.has_address


def store(path: Path, *originals: Path) -> None:
    """Copy ``originals`` into the folder of ``path``, atomically.

    ``path`` is the copy of the first file. It is written last, so that if it exists, all do.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for file in reversed(originals):
        with files.replacing(path.parent / file.name) as part:
            shutil.copyfile(file, part)
