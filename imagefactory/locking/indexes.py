"""Where wheels can be had: simple indexes and local folders.

A wheel is its hash; the place is only a place.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from imagefactory.errors import Problem
from imagefactory.locking.lock import Wheel
from imagefactory.settings import Settings
from imagefactory.system import web

if TYPE_CHECKING:
    from pypi_simple import DistributionPackage, PyPISimple

THREADS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What one index says about one project; ``problem`` tells why nothing could be learnt."""

    files: tuple[DistributionPackage, ...] = ()
    problem: str = ""


def pages(index: str, projects: Iterable[str]) -> dict[str, Page]:
    """The pages of ``projects`` at a simple index, fetched side by side.

    Never raises for an index that is down.
    """
    from pypi_simple import PyPISimple  # noqa: PLC0415 - a tenth of a second, at the start of every command else

    with PyPISimple(index) as client, ThreadPoolExecutor(THREADS) as pool:
        names = list(dict.fromkeys(projects))
        return dict(zip(names, pool.map(lambda name: _page(client, name), names), strict=True))


def _page(client: PyPISimple, name: str) -> Page:
    import requests  # noqa: PLC0415 - as above
    from pypi_simple import NoSuchProjectError  # noqa: PLC0415

    try:
        page = web.patiently(lambda: client.get_project_page(name, timeout=web.SECONDS))
        return Page(files=tuple(page.packages))
    except NoSuchProjectError:
        return Page()
    except (requests.RequestException, ValueError) as error:
        return Page(problem=type(error).__name__)


@lru_cache(maxsize=256)
def _file_hash(path: Path, size: int, changed: int) -> str:  # noqa: ARG001 - size and time make the cache's key
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def local(wheel: Wheel, folders: Sequence[Path]) -> Path | None:
    """The file of exactly that hash in one of ``folders``, or None."""
    for folder in folders:
        path = folder / wheel.filename
        if path.is_file():
            stat = path.stat()
            if _file_hash(path, stat.st_size, stat.st_mtime_ns) == wheel.sha256:
                return path
    return None


def missing(wheels: Iterable[Wheel], settings: Settings) -> list[Problem]:
    """A problem for every wheel that no place has.

    An index that is down matters only to a hash no other place has.
    """
    wanted = {wheel.sha256: wheel for wheel in wheels}
    named = [
        wheel for wheel in wanted.values() if wheel.has_address and not web.answers(wheel.index)
    ]
    gone = [
        Problem(
            code="wheel-unreachable",
            where=wheel.filename,
            what=f"{wheel.index} does not answer",
            fix="name another address in matrix.yaml, and run imagefactory lock",
        )
        for wheel in named
    ]
    wanted = {sha: wheel for sha, wheel in wanted.items() if not wheel.has_address}
    left = {
        sha: wheel for sha, wheel in wanted.items() if local(wheel, settings.find_links) is None
    }
    down: dict[str, str] = {}
    for index in settings.indexes:
        if not left:
            break
        found = pages(index, sorted({wheel.name for wheel in left.values()}))
        troubles = [page.problem for page in found.values() if page.problem]
        if troubles:
            down[index] = troubles[0]
        served = {file.digests.get("sha256") for page in found.values() for file in page.files}
        left = {sha: wheel for sha, wheel in left.items() if sha not in served}
    asked = ", ".join([*settings.indexes, *(str(folder) for folder in settings.find_links)])
    note = "; ".join(f"{index} did not answer ({why})" for index, why in down.items())
    return gone + [
        Problem(
            code="wheel-unreachable" if down else "wheel-gone",
            where=wheel.filename,
            what=f"no place has the hash {wheel.sha256[:16]} any more"
            + (f"; {note}" if note else ""),
            fix=(
                f"asked: {asked}; name another with UV_INDEX or PIP_FIND_LINKS, or "
                f"imagefactory lock -P {wheel.name}"
            ),
        )
        for wheel in sorted(left.values(), key=lambda wheel: wheel.filename)
    ]
