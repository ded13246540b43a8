"""Files by their hash, kept below the cache.

What is at no index, and what imagefactory builds itself.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from pathlib import Path

from filelock import FileLock

from imagefactory.errors import SetupError, fail
from imagefactory.locking import gitref, indexes
from imagefactory.locking.lock import Wheel
from imagefactory.settings import Settings
from imagefactory.system import ui, web


def fetch(url: str, sha256: str, filename: str, settings: Settings) -> Path:
    """The file with that hash, downloaded the first time; what was cut off is never taken for it.

    Raises SetupError if the address does not answer, or has another file by now.
    """
    target = place(sha256, filename, settings)
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(target.parent.with_name(f"{sha256}.lock")):
        if not target.is_file():
            with ui.step(f"fetching {filename}"):
                _download(url, sha256, target)
    return target


def _download(url: str, sha256: str, target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        part = Path(folder) / target.name
        found = _pack(url, part) if url.startswith("git+") else _save(url, part)
        if found != sha256:
            what = f"{url} is {found}, not {sha256}"
            fix = (
                "somebody replaced the file: ask who keeps it; or lock the new one by "
                "its hash in matrix.yaml"
            )
            raise fail(SetupError, "wheel-changed", what, fix=fix)
        part.rename(target)


def _pack(url: str, path: Path) -> str:
    """Fetch the commit of ``url`` (``git+REPOSITORY@COMMIT``) into an archive at ``path``.

    Its SHA-256.
    """
    repository, _, commit = url.removeprefix("git+").rpartition("@")
    gitref.pack(repository, commit, path)
    return sha_of(path)


def sha_of(path: Path) -> str:
    """SHA-256 of a file, as hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _save(url: str, path: Path) -> str:
    """Download ``url`` to ``path``; the SHA-256 of what came."""
    with path.open("wb") as file:
        return web.download(url, file, code="wheel-unreachable")


def place(sha256: str, filename: str, settings: Settings) -> Path:
    """Where the file with that hash is kept, be it there or not."""
    return settings.cache / "wheelhouse" / sha256 / filename


def of(wheel: Wheel, settings: Settings) -> Path:
    """The file of a wheel that is locked by its address, or that was built.

    Raises SetupError if it cannot be had.
    """
    if wheel.is_built:
        path = place(wheel.sha256, wheel.filename, settings)
        if not path.is_file():
            what = f"{wheel.filename} ({wheel.sha256[:16]}) was built elsewhere"
            raise fail(
                SetupError,
                "wheel-not-here",
                what,
                fix="imagefactory wheel builds it here, to the same bytes",
            )
        return path
    return fetch(wheel.index, wheel.sha256, wheel.filename, settings)


def from_index(wheel: Wheel, settings: Settings) -> Path:
    """The file of a locked wheel, from the first place that has its hash.

    Raises SetupError if none has.
    """
    here = indexes.local(wheel, settings.find_links)
    if here:
        return here
    for index in settings.indexes:
        for file in indexes.pages(index, [wheel.name])[wheel.name].files:
            if file.digests.get("sha256") == wheel.sha256:
                return fetch(file.url.partition("#")[0], wheel.sha256, wheel.filename, settings)
    raise SetupError(indexes.missing([wheel], settings))


def keep(path: Path, *files: Path) -> None:
    """Put files beside each other where ``path`` is, which is the first of them and comes last.

    There or not at all.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for file in reversed(files):
        part = path.parent / f".{file.name}.part"
        shutil.copyfile(file, part)
        part.rename(path.parent / file.name)
