"""What to change when a package has no wheel for the target: version, Python, glibc or index."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from packaging.tags import Tag
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from imagefactory.locking import indexes
from imagefactory.locking.tags import target_tags
from imagefactory.matrix.cell import Request
from imagefactory.settings import Settings

#: How uv says that a package, or a version of it, has no wheel that the target can install.
_NO_WHEEL = re.compile(
    r"(?:all versions of )?(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*?)(?:==(?P<version>\S+))? "
    r"(?:has|have) no (?:usable wheels|wheels with a matching)"
)
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
#: Newer than that of any base.
_GLIBC = "2.60"
LISTED = 5

Files = list[tuple[Version, frozenset[Tag]]]


def of_missing_wheel(text: str, request: Request, settings: Settings) -> str:
    """What to write instead, if uv's error ``text`` is about a missing wheel; else empty."""
    found = _NO_WHEEL.search(text)
    if found is None:
        return ""
    files = _files(found["name"], settings)
    wanted = [one for one in files if not found["version"] or one[0] == Version(found["version"])]
    shown = f"{found['name']} {found['version'] or ''}".strip()
    cures = list(_cures(shown, wanted, files, request))
    other = f"take {found['name']} from another index (`indexes`), or give its wheel by URL"
    return "; or ".join([*cures, other])


def _cures(shown: str, wanted: Files, files: Files, request: Request) -> Iterator[str]:
    versions = sorted({version for version, _ in _fitting(files, request)}, reverse=True)
    if versions:
        yield f"write a version that has a wheel: {', '.join(map(str, versions[:LISTED]))}"
    pythons = [one for one in PYTHONS if _fitting(wanted, replace(request, python=one))]
    if pythons:
        yield f"choose a base with Python {' or '.join(pythons)}, which {shown} has a wheel for"
    elif _fitting(wanted, replace(request, glibc=_GLIBC)):
        yield f"choose a base with a newer glibc, which {shown} has a wheel for"


def _fitting(files: Files, request: Request) -> Files:
    tags = frozenset(target_tags(request))
    return [one for one in files if not one[1].isdisjoint(tags)]


def _files(name: str, settings: Settings) -> Files:
    """Version and tags of every wheel that the machine's indexes have of a package."""
    found: Files = []
    for index in settings.indexes:
        project = canonicalize_name(name)
        for file in indexes.pages(index, [project], settings)[project].files:
            try:
                _, version, _, tags = parse_wheel_filename(file.filename)
            except InvalidWheelFilename:
                continue
            found.append((version, tags))
    return found
