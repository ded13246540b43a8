"""Reads a release's own requirements from its metadata, without downloading the release."""

from __future__ import annotations

import json
import zipfile
from email.parser import HeaderParser
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from imagefactory.errors import SetupError
from imagefactory.locking import indexes, remote_wheel
from imagefactory.locking.lock import Wheel
from imagefactory.settings import Settings
from imagefactory.system import web

if TYPE_CHECKING:
    from pypi_simple import DistributionPackage


def requires(name: str, version: str, settings: Settings) -> list[str] | None:
    """The Requires-Dist lines of a wheel of ``name`` ``version``; None if none is found."""
    for folder in settings.find_links:
        for path in sorted(folder.glob("*.whl")):
            if _is(path.name, name, version):
                with zipfile.ZipFile(path) as archive:
                    return _lines(archive.read(_member(archive)).decode())
    for index in settings.indexes:
        for file in indexes.pages(index, [name], settings)[name].files:
            sha256 = file.digests.get("sha256")
            if sha256 and _is(file.filename, name, version):
                return _of_file(file, sha256, index, settings)
    return None


def _of_file(
    file: DistributionPackage, sha256: str, index: str, settings: Settings
) -> list[str] | None:
    """The lines of a wheel on an index; None if they cannot be read."""
    wheel = Wheel(
        name=canonicalize_name(file.project or ""),
        version=file.version or "",
        filename=file.filename,
        sha256=sha256,
        size=file.size or 0,
        index=index,
    )
    try:
        return of_wheel(wheel, file.url.partition("#")[0], settings)
    except SetupError:
        return None


def of_wheel(
    wheel: Wheel, location: str | Path, settings: Settings, *, whole: bool = True
) -> list[str]:
    """The Requires-Dist lines of a wheel; ``location`` is its URL or its path.

    They are kept by the wheel's hash. Without ``whole``, a wheel is never downloaded for them.
    Raises SetupError if they cannot be read.
    """
    kept = settings.cache / "metadata" / f"{wheel.sha256}.json"
    try:
        lines: list[str] = json.loads(kept.read_text(encoding="utf-8"))
        if all(isinstance(line, str) for line in lines):
            return lines
    except (OSError, ValueError, TypeError, RecursionError):
        pass
    path = location if isinstance(location, Path) else indexes.local(wheel, settings.find_links)
    if path:
        with zipfile.ZipFile(path) as archive:
            lines = _lines(archive.read(_member(archive)).decode())
    else:
        lines = _lines(_remote(wheel, str(location), settings, whole=whole))
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(lines), encoding="utf-8")
    return lines


def _remote(wheel: Wheel, url: str, settings: Settings, *, whole: bool) -> str:
    """METADATA: the index's own file (PEP 658), else from the wheel, by ranges or in full."""
    account = settings.account_for(url)
    text = web.text_of(f"{url}.metadata", account)
    if text is not None and text.startswith("Metadata-Version:"):
        return text
    return remote_wheel.member(wheel, url, settings, _member, whole=whole).decode()


def _is(filename: str, name: str, version: str) -> bool:
    try:
        found, release, _, _ = parse_wheel_filename(filename)
    except InvalidWheelFilename:
        return False
    return found == canonicalize_name(name) and release == Version(version)


def _member(archive: zipfile.ZipFile) -> str:
    return next(
        name
        for name in archive.namelist()
        if name.endswith(".dist-info/METADATA") and name.count("/") == 1
    )


def _lines(text: str) -> list[str]:
    return [str(line) for line in HeaderParser().parsestr(text).get_all("Requires-Dist") or ()]
