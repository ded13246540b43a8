"""Adapter: releases as the indexes have them now. Pages and metadata only, never a whole wheel."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from imagefactory.errors import Problem, SetupError
from imagefactory.locking import indexes, metadata
from imagefactory.locking.lock import Wheel
from imagefactory.settings import Settings
from imagefactory.watching.releases import Listing, WheelFile, listing, wheel_file

if TYPE_CHECKING:
    from pypi_simple import DistributionPackage

THREADS = 16
#: A project, and the URL of the index that the matrix takes it from.
Wanted = tuple[str, str | None]


class IndexesNow:
    """What the machine's indexes, wheel folders and the matrix's own indexes have.

    A project's page is read once. ``now`` leaves out what was uploaded later.
    """

    def __init__(self, settings: Settings, now: datetime) -> None:
        self._settings, self._now = settings, now
        self._known: dict[Wanted, Listing] = {}
        self._requires: dict[str, tuple[str, ...]] = {}

    def read(self, wanted: Iterable[Wanted]) -> None:
        """Read the pages of all ``wanted`` projects at once, to have them when they are asked for.

        An index that is down is reported in the listings.
        """
        by_index: dict[str | None, set[str]] = {}
        for project, index in wanted:
            if (project, index) not in self._known:
                by_index.setdefault(index, set()).add(project)
        jobs = [
            (index, url, sorted(projects))
            for index, projects in by_index.items()
            for url in ([index] if index else self._settings.indexes)
        ]
        with ThreadPoolExecutor(max(len(jobs), 1)) as pool:
            pages = list(pool.map(lambda job: indexes.pages(job[1], job[2], self._settings), jobs))
        for index, projects in by_index.items():
            mine = [page for job, page in zip(jobs, pages, strict=True) if job[0] == index]
            for project in projects:
                found = self._listing([page[project] for page in mine], project, index)
                self._known[project, index] = found.at(self._now)

    def listing(self, project: str, index: str | None = None) -> Listing:
        """What is known of ``project``."""
        self.read([(project, index)])
        return self._known[project, index]

    def read_requirements(self, wheels: Iterable[tuple[str, WheelFile]]) -> None:
        """Read the requirements of several wheels at once; what fails is tried when asked for."""

        def read(pair: tuple[str, WheelFile]) -> None:
            with suppress(SetupError):
                self.requires(*pair)

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(read, wheels))

    def requires(self, project: str, wheel: WheelFile) -> tuple[str, ...]:
        """The Requires-Dist lines of a wheel. Raises SetupError if they cannot be read."""
        if wheel.filename not in self._requires:
            parts = urlsplit(wheel.url)
            path = Path(unquote(parts.path)) if parts.scheme == "file" else None
            identity = f"{wheel.url} {path.stat().st_mtime_ns if path else ''}"
            locked = Wheel(
                name=project,
                version=wheel.filename.split("-")[1],
                filename=wheel.filename,
                sha256=wheel.sha256 or hashlib.sha256(identity.encode()).hexdigest(),
                size=wheel.size,
                index=wheel.url,
            )
            lines = metadata.of_wheel(locked, path or wheel.url, self._settings, whole=False)
            self._requires[wheel.filename] = tuple(lines)
        return self._requires[wheel.filename]

    def _listing(self, pages: list[indexes.Page], project: str, index: str | None) -> Listing:
        problem: Problem | None = next((page.error for page in pages if page.error), None)
        found = [_file(file) for page in pages for file in page.files]
        if index is None:
            found += self._local(project)
        files = {file.filename: file for file in reversed([f for f in found if f])}
        bare = {
            file.version
            for page in pages
            for file in page.files
            if file.package_type == "sdist" and file.version
        }
        return Listing(listing(list(files.values()), sorted(bare)).releases, problem)

    def _local(self, project: str) -> list[WheelFile | None]:
        """The wheels in local folders; what is there may be installed without an index."""
        start = f"{project.replace('-', '_')}-"
        return [
            wheel_file(path.name, url=path.as_uri())
            for folder in self._settings.find_links
            for path in sorted(folder.glob("*.whl"))
            if path.name.lower().startswith(start)
        ]


def _file(file: DistributionPackage) -> WheelFile | None:
    return (
        wheel_file(
            file.filename,
            python=file.requires_python or "",
            yanked=(file.yanked_reason or "yanked") if file.is_yanked else None,
            uploaded=file.upload_time,
            url=file.url.partition("#")[0],
            sha256=file.digests.get("sha256", ""),
            size=file.size or 0,
        )
        if file.package_type == "wheel"
        else None
    )
