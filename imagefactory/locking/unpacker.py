"""Locks the uv that unpacks wheels in builds, and gets its program out of the locked wheel.

No resolver is needed: uv depends on nothing, and one version has to serve every build platform.
"""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from imagefactory.errors import (
    CheckFailedError,
    FactoryError,
    InputError,
    Problem,
    SetupError,
    fail,
)
from imagefactory.locking import indexes, remote_wheel, wheelhouse
from imagefactory.locking.lock import FIND_LINKS, NO_UNPACKER, Unpacker, Wheel
from imagefactory.locking.tags import COMPILER_GLIBC, COMPILER_PYTHON, target_tags
from imagefactory.matrix.cell import Request
from imagefactory.settings import Settings
from imagefactory.system import temporary, ui, web
from imagefactory.system.platforms import Platform

NAME = "uv"
#: Folder of the programs, below the cache folder.
FOLDER = "unpackers"


def newest(
    settings: Settings, allows: Callable[[Version], bool] = lambda _: True
) -> tuple[Unpacker, ...]:
    """Wheels of the newest uv that has one for each build platform, of the versions that count.

    Empty if none of the versions counts. Raises CheckFailedError if no version has a wheel for
    each, SetupError if an index that might have one is not reachable.
    """
    with ui.step(f"looking up the newest {NAME}"):
        found, down = _offered(settings)
        versions = {one.version for one in found if allows(one.version)}
        if found and not versions:
            return ()
        for version in sorted(versions, reverse=True):
            best = [_best(found, version, platform) for platform in Platform]
            chosen = [one for one in best if one]
            if len(chosen) == len(Platform):
                pairs = zip(Platform, chosen, strict=True)
                return tuple(_locked(platform, offer, settings) for platform, offer in pairs)
    raise _not_found(down)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Offer:
    """A wheel of uv on an index or in a folder; ``size`` is None if the index does not say."""

    version: Version
    filename: str
    sha256: str
    size: int | None
    index: str
    url: str


def _offered(settings: Settings) -> tuple[list[_Offer], list[Problem]]:
    """The wheels of all indexes, then of all folders, and which indexes failed with what."""
    found, down = list[_Offer](), list[Problem]()
    for index in settings.indexes:
        page = indexes.pages(index, [NAME], settings)[NAME]
        if page.error:
            down.append(page.error)
        for file in page.files:
            version = _release(file.filename)
            if version and not file.is_yanked and "sha256" in file.digests:
                found.append(
                    _Offer(
                        version=version,
                        filename=file.filename,
                        sha256=file.digests["sha256"],
                        size=file.size,
                        index=index,
                        url=file.url.partition("#")[0],
                    )
                )
    found += [one for folder in settings.find_links for one in _in_folder(folder)]
    return found, down


def _in_folder(folder: Path) -> Iterator[_Offer]:
    for path in sorted(folder.glob(f"{NAME}-*.whl")):
        version = _release(path.name)
        if version:
            yield _Offer(
                version=version,
                filename=path.name,
                sha256=wheelhouse.sha_of(path),
                size=path.stat().st_size,
                index=FIND_LINKS,
                url="",
            )


def _release(filename: str) -> Version | None:
    """The version in the name of a wheel of uv; None for a prerelease and any other file."""
    try:
        name, version, _, _ = parse_wheel_filename(filename)
    except InvalidWheelFilename:
        return None
    return version if name == canonicalize_name(NAME) and not version.is_prerelease else None


def _best(found: Sequence[_Offer], version: Version, platform: Platform) -> _Offer | None:
    """The wheel that suits ``platform`` best, the first of equals; None if none does."""
    request = Request(
        platform=platform,
        python=COMPILER_PYTHON,
        glibc=COMPILER_GLIBC,
        channel="",
        requirements=(NAME,),
        overrides=(),
    )
    ranks = {tag: rank for rank, tag in reversed(list(enumerate(target_tags(request))))}
    ranked = []
    for one in found:
        if one.version == version:
            suits = [ranks[tag] for tag in parse_wheel_filename(one.filename)[3] if tag in ranks]
            ranked += [(min(suits), one)] if suits else []
    return min(ranked, key=lambda pair: pair[0])[1] if ranked else None


def _locked(platform: Platform, offer: _Offer, settings: Settings) -> Unpacker:
    wheel = Wheel(
        name=NAME,
        version=str(offer.version),
        filename=offer.filename,
        sha256=offer.sha256,
        size=offer.size
        if offer.size is not None
        else web.size_of(offer.url, settings.account_for(offer.url)),
        index=offer.index,
    )
    return Unpacker(platform=platform, wheel=wheel)


def _not_found(down: Sequence[Problem]) -> FactoryError:
    fix = "add an index with UV_INDEX or a folder with PIP_FIND_LINKS that has it"
    if down:
        what = f"no {NAME} was found: {', '.join(problem.what for problem in down)}"
        return fail(SetupError, down[0].code, what, fix=f"{down[0].fix}; or {fix}")
    what = f"no version of {NAME} has a wheel for each of {', '.join(Platform)}"
    return fail(CheckFailedError, "lock-no-wheel", what, fix=fix)


def program(unpackers: Iterable[Unpacker], platform: Platform, settings: Settings) -> Path:
    """The uv for ``platform``, extracted once from its locked wheel into the cache.

    Raises InputError if it is not locked, SetupError if its wheel is not available.
    """
    wheel = next((one.wheel for one in unpackers if one.platform == platform), None)
    if wheel is None:
        raise fail(InputError, "lock-uncovered", NO_UNPACKER, fix="imagefactory lock")
    path = settings.cache / FOLDER / wheel.sha256 / NAME
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.folder(prefix="imagefactory-unpacker-", parent=path.parent) as folder:
            part = folder / NAME
            _extract(wheelhouse.from_index(wheel, settings), part)
            part.chmod(0o755)
            part.rename(path)
    return path


def _extract(wheel: Path, target: Path) -> None:
    member = f"{'-'.join(wheel.name.split('-')[:2])}.data/scripts/{NAME}"
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(member) as source,
            target.open("wb") as file,
        ):
            shutil.copyfileobj(source, file)
    except (KeyError, *remote_wheel.DAMAGED):
        what, fix = f"{wheel} has no {member}", "lock another version: imagefactory lock -P uv"
        raise fail(SetupError, "unpacker-broken", what, fix=fix) from None
