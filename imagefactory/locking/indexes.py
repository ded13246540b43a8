"""Where wheels are available: simple indexes and local folders.

A wheel is identified by its hash; it does not matter which of them serves it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urljoin

from imagefactory import __version__
from imagefactory.errors import Problem, SetupError
from imagefactory.locking.lock import Wheel
from imagefactory.settings import Settings
from imagefactory.system import index_errors, web

if TYPE_CHECKING:
    from pypi_simple import DistributionPackage, PyPISimple
    from requests import Response

Read = TypeVar("Read")
THREADS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One index's page for one project; ``error`` says why it could not be read."""

    files: tuple[DistributionPackage, ...] = ()
    error: Problem | None = None

    @property
    def problem(self) -> str:
        """Why it could not be read, in short; empty if it could."""
        return self.error.what if self.error else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Where wanted files of one project are, by SHA-256; ``error`` as in ``Page``."""

    urls: Mapping[str, str]
    error: Problem | None = None


def pages(index: str, projects: Iterable[str], settings: Settings) -> dict[str, Page]:
    """The pages of ``projects`` on a simple index, fetched in parallel.

    A page that has not changed since the last time is not sent again (ETag). An index that is down
    is reported in the pages, not raised.
    """
    return _each(index, projects, settings, _page)


def _each(
    index: str,
    projects: Iterable[str],
    settings: Settings,
    read: Callable[[PyPISimple, str], Read],
) -> dict[str, Read]:
    """What ``read`` makes of the page of each project."""
    from pypi_simple import PyPISimple  # noqa: PLC0415 - takes 100 ms

    from imagefactory.system.kept_answers import Keeping  # noqa: PLC0415 - as above

    session = Keeping(settings.cache / "index", f"imagefactory/{__version__}")
    with (
        PyPISimple(index, auth=settings.account_for(index), session=session) as client,
        ThreadPoolExecutor(THREADS) as pool,
    ):
        names = list(dict.fromkeys(projects))
        return dict(zip(names, pool.map(lambda name: read(client, name), names), strict=True))


def _page(client: PyPISimple, name: str) -> Page:
    import requests  # noqa: PLC0415 - as above
    from pypi_simple import NoSuchProjectError  # noqa: PLC0415

    try:
        with web.waiting(client.endpoint):
            page = web.with_retries(lambda: client.get_project_page(name, timeout=web.timeout()))
        return Page(files=tuple(page.packages))
    except NoSuchProjectError:
        return Page()
    except (requests.RequestException, ValueError) as error:
        return Page(error=index_errors.of_request(client.get_project_url(name), error))


def _find(
    index: str,
    wheels: Sequence[Wheel],
    settings: Settings,
    found: Callable[[str, str], object] = lambda *_: None,
) -> list[Found]:
    """Which of ``wheels`` an index has, and where; ``found`` is called with each hash and URL.

    A page lists thousands of files: of JSON, only those that are wanted are looked at.
    """
    wanted = {wheel.sha256 for wheel in wheels}
    names = dict.fromkeys(wheel.name for wheel in wheels)

    def read(client: PyPISimple, name: str) -> Found:
        import requests  # noqa: PLC0415 - as above

        url = client.get_project_url(name)
        try:
            with web.waiting(client.endpoint):
                answer = web.with_retries(lambda: _get(client, url))
            here = _urls(answer, name, wanted)
        except (requests.RequestException, ValueError) as error:
            return Found(urls={}, error=index_errors.of_request(url, error))
        for sha, address in here.items():
            found(sha, address.partition("#")[0])
        return Found(urls=here)

    return [*_each(index, names, settings, read).values()]


def _get(client: PyPISimple, url: str) -> Response:
    accept = {"Accept": client.accept}
    answer = client.s.get(url, headers=accept, timeout=web.timeout())
    if answer.status_code != HTTPStatus.NOT_FOUND:
        answer.raise_for_status()
    return answer


def _urls(answer: Response, name: str, wanted: set[str]) -> dict[str, str]:
    """Where a page says the ``wanted`` hashes are. Raises ValueError for what is no such page."""
    from pypi_simple import ProjectPage  # noqa: PLC0415 - as above

    if answer.status_code == HTTPStatus.NOT_FOUND:
        return {}
    if "json" in answer.headers.get("content-type", ""):
        with suppress(KeyError, TypeError, AttributeError):
            rows = ((row["hashes"].get("sha256"), row["url"]) for row in answer.json()["files"])
            return {sha: urljoin(answer.url, url) for sha, url in rows if sha in wanted}
    files = ProjectPage.from_response(answer, name).packages
    found = {file.digests.get("sha256", ""): file.url for file in files}
    return {sha: url for sha, url in found.items() if sha in wanted}


def faults(names: Sequence[str], settings: Settings) -> list[Problem]:
    """What is wrong with the indexes themselves, as far as their pages of ``names`` show it."""
    found = [pages(index, names, settings) for index in settings.indexes]
    errors = [page.error for shown in found for page in shown.values() if page.error]
    if errors:
        return list(dict.fromkeys(errors))[:1]
    local = {path.name.partition("-")[0] for f in settings.find_links for path in f.glob("*.whl")}
    known = {name for shown in found for name, page in shown.items() if page.files}
    if known or any(name.replace("-", "_") in local for name in names):
        return []
    return [index_errors.of_empty(index, names) for index in settings.indexes]


@lru_cache(maxsize=256)
def _file_hash(path: Path, size: int, changed: int) -> str:  # noqa: ARG001 - part of the cache key
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def local(wheel: Wheel, folders: Sequence[Path]) -> Path | None:
    """The wheel's file in one of ``folders``, if its hash matches; else None."""
    for folder in folders:
        path = folder / wheel.filename
        if path.is_file():
            stat = path.stat()
            if _file_hash(path, stat.st_size, stat.st_mtime_ns) == wheel.sha256:
                return path
    return None


def urls(wheels: Iterable[Wheel], settings: Settings, found: Callable[[str, str], object]) -> None:
    """Call ``found`` with the SHA-256 and the URL of each of ``wheels``, as pages are read.

    The first index that has a hash counts; pages are read in the order of ``wheels``. Raises
    SetupError for those that no index has.
    """
    left = {wheel.sha256: wheel for wheel in wheels}
    for index in settings.indexes:
        if not left:
            break
        for one in _find(index, list(left.values()), settings, found):
            for sha in one.urls:
                left.pop(sha, None)
    if left:
        raise SetupError(missing(left.values(), settings))


def missing(wheels: Iterable[Wheel], settings: Settings) -> list[Problem]:
    """A problem for every wheel that is not available from any index, wheel folder or URL.

    An index that is down matters only for wheels that are not found anywhere else.
    """
    wanted = {wheel.sha256: wheel for wheel in wheels}
    unreachable = [
        Problem(
            code="wheel-unreachable",
            where=wheel.filename,
            what=f"{wheel.index} is not reachable",
            fix="write another URL in matrix.yaml, and run imagefactory lock",
        )
        for wheel in wanted.values()
        if wheel.has_address and not web.answers(wheel.index, settings.account_for(wheel.index))
    ]
    left = {
        sha: wheel
        for sha, wheel in wanted.items()
        if not wheel.has_address and local(wheel, settings.find_links) is None
    }
    down: dict[str, str] = {}
    for index in settings.indexes:
        if not left:
            break
        found = _find(index, list(left.values()), settings)
        problems = [one.error.what for one in found if one.error]
        if problems:
            down[index] = problems[0]
        served = {sha for one in found for sha in one.urls}
        left = {sha: wheel for sha, wheel in left.items() if sha not in served}
    not_found = sorted(left.values(), key=lambda wheel: wheel.filename)
    return unreachable + [_not_found(wheel, down, settings) for wheel in not_found]


def _not_found(wheel: Wheel, down: Mapping[str, str], settings: Settings) -> Problem:
    searched = ", ".join([*settings.indexes, *map(str, settings.find_links)])
    failed = "".join(f"; {index} did not answer ({why})" for index, why in down.items())
    return Problem(
        code="wheel-unreachable" if down else "wheel-gone",
        where=wheel.filename,
        what=f"not found on any index (sha256 {wheel.sha256[:16]}…){failed}",
        fix=(
            f"searched {searched}; add an index with UV_INDEX or a folder with PIP_FIND_LINKS, "
            f"or lock another version: imagefactory lock -P {wheel.name}"
        ),
    )
