"""Writes a resolution as ``pylock.toml`` (PEP 751), which uv and other installers read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w
from packaging.markers import Marker
from packaging.pylock import (
    Package,
    PackageArchive,
    PackageWheel,
    Pylock,
    is_valid_pylock_path,
)
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from imagefactory.errors import SetupError
from imagefactory.locking import indexes, wheelhouse
from imagefactory.locking.lock import Resolution, Wheel
from imagefactory.settings import Settings

__all__ = ["Locations", "dumps", "is_valid_pylock_path", "locate"]
#: Where each wheel is: its URL, or its file if no index has it.
Locations = Mapping[Wheel, str | Path]


def locate(resolution: Resolution, settings: Settings) -> Locations:
    """Where each wheel of ``resolution`` is now; wheels on indexes are found by their hash.

    Raises SetupError with a problem for each wheel that is not available.
    """
    found: dict[Wheel, str | Path] = {}
    for wheel in resolution.wheels:
        if wheel.has_address:
            found[wheel] = wheel.index
        elif wheel.is_built:
            found[wheel] = wheelhouse.file_of(wheel, settings)
    for index in settings.indexes:
        found |= _served(
            [wheel for wheel in resolution.wheels if wheel not in found], index, settings
        )
    for wheel in resolution.wheels:
        path = None if wheel in found else indexes.local(wheel, settings.find_links)
        if path:
            found[wheel] = path
    gone = [wheel for wheel in resolution.wheels if wheel not in found]
    if gone:
        raise SetupError(indexes.missing(gone, settings))
    return found


def _served(wheels: Sequence[Wheel], index: str, settings: Settings) -> dict[Wheel, str]:
    """The URLs of those of ``wheels`` that ``index`` has."""
    wanted = {wheel.sha256: wheel for wheel in wheels}
    files = (
        file
        for page in indexes.pages(index, (w.name for w in wheels), settings).values()
        for file in page.files
    )
    return {
        wanted[sha]: file.url.partition("#")[0]
        for file in files
        if (sha := file.digests.get("sha256", "")) in wanted
    }


def dumps(resolution: Resolution, locations: Locations, folder: Path, *, cell: str) -> str:
    """The text of a ``pylock.toml`` in ``folder`` with exactly the wheels of ``cell``.

    Files below ``folder`` get a relative path, others an absolute one. Raises
    PylockValidationError if the result is not valid, which would be a bug.
    """
    made = Pylock(
        lock_version=Version("1.0"),
        environments=[_environment(resolution)],
        requires_python=SpecifierSet(f"=={resolution.python}.*"),
        created_by="imagefactory",
        packages=[_package(w, locations[w], folder) for w in resolution.wheels],
        tool={"imagefactory": _facts(resolution, cell)},
    )
    made.validate()
    return tomli_w.dumps(made.to_dict())


def _environment(resolution: Resolution) -> Marker:
    machine = resolution.platform.machine
    return Marker(
        f"implementation_name == 'cpython' and platform_machine == '{machine}' "
        "and sys_platform == 'linux'"
    )


def _package(wheel: Wheel, location: str | Path, folder: Path) -> Package:
    name, version = canonicalize_name(wheel.name), Version(wheel.version)
    hashes = {"sha256": wheel.sha256}
    if wheel.has_address:
        archive = PackageArchive(url=wheel.index, size=wheel.size, hashes=hashes)
        return Package(name=name, version=version, archive=archive)
    if isinstance(location, Path):
        path = location.relative_to(folder) if location.is_relative_to(folder) else location
        local = PackageWheel(
            name=wheel.filename, path=path.as_posix(), size=wheel.size, hashes=hashes
        )
        return Package(name=name, version=version, wheels=[local])
    remote = PackageWheel(name=wheel.filename, url=location, size=wheel.size, hashes=hashes)
    return Package(name=name, version=version, index=wheel.index, wheels=[remote])


def _facts(resolution: Resolution, cell: str) -> dict[str, Any]:
    """What wheels.lock records and the format has no field for."""
    return {
        "cell": cell,
        "resolution": resolution.name,
        "created": resolution.created,
        "glibc": resolution.glibc,
        "torch": resolution.torch.version,
        "overrides": [
            {"requirement": one.requirement, "drop": one.drop, "reason": one.reason}
            for one in resolution.overrides
        ],
    }
