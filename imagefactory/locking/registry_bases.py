"""Bases that are images of a registry: their digests, and the environment that they set."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from imagefactory.errors import FactoryError, InputError, Problem, SetupError, fail
from imagefactory.locking.debian import skeleton as skeletons
from imagefactory.locking.debian.skeleton import Skeleton
from imagefactory.locking.lock import LockedBase
from imagefactory.matrix.cell import Base
from imagefactory.settings import Settings
from imagefactory.system import files, ui
from imagefactory.system.manifests import Descriptor, Manifest
from imagefactory.system.platforms import Platform
from imagefactory.system.registry import Registries

#: The environment of an image: names and values, sorted.
Environment = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseImages:
    """What a registry has for a base.

    Attributes:
        digest: of the image, or of the index of all platforms.
        images: the digest of each platform's image.
        environments: what each platform's image sets.
    """

    digest: str
    images: Mapping[Platform, str]
    environments: Mapping[Platform, Environment]


def is_pinned(base: Base) -> bool:
    """Whether the matrix gives the digest of the base's image."""
    return "@" in base.image


def look_up(
    base: Base, wanted: Collection[Platform], registries: Registries, *, digest: str | None = None
) -> BaseImages:
    """The images of ``base``, of its reference or, with ``digest``, of that digest.

    ``wanted`` are the platforms of the cells on it. Raises InputError for an image that the
    registry does not have, or not for all of ``wanted``; SetupError if the registry does not
    answer.
    """
    name = base.image.partition("@")[0]
    reference = f"{name}@{digest}" if digest else base.image
    with ui.step(f"looking up {reference}"):
        found = registries.manifest(reference)
        if found is None:
            raise InputError([_unknown(base)])
        images = _images(name, found, registries)
        lacks = _lacks(base, wanted, images, found)
        if lacks:
            raise InputError([lacks])
    known = [platform for platform in Platform if platform in images]
    return BaseImages(
        digest=found.digest,
        images={platform: images[platform][0] for platform in known},
        environments={platform: _environment(images[platform][1]) for platform in known},
    )


def vanished(base: Base, registries: Registries) -> Problem | None:
    """The problem of a pinned base whose digest its registry does not have any more, or None.

    If the registry does not answer, that is a warning: whether it has the digest is inconclusive.
    """
    try:
        found = registries.manifest(base.image)
    except SetupError as error:
        ui.warn(f"inconclusive whether {base.image} exists: {error.problems[0].what}")
        return None
    return None if found else _unknown(base)


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseImage:
    """One platform's image of a base in its registry.

    Attributes:
        name: the repository.
        digest: of the image's manifest.
        layers: from the bottom up.
        config: its configuration.
    """

    name: str
    digest: str
    layers: tuple[Descriptor, ...]
    config: Mapping[str, Any]


def image_of(locked: LockedBase, registries: Registries) -> BaseImage:
    """The image that is locked for one platform.

    Raises SetupError if the registry does not answer, or does not have the image any more.
    """
    name = locked.image.partition("@")[0]
    digest = _own(locked, registries)
    found = registries.manifest(f"{name}@{digest}")
    if found is None or found.config is None:
        raise _unreadable(f"{name}@{digest}", "the registry does not have it")
    config = _config(name, digest, found.config, registries)
    return BaseImage(name=name, digest=digest, layers=found.layers, config=config)


def config_of(locked: LockedBase, registries: Registries, settings: Settings) -> Mapping[str, Any]:
    """The configuration of the image that is locked for one platform, kept in the cache folder.

    Raises as ``image_of`` does.
    """
    key = f"{locked.digest}-{locked.platform}".replace(":", "-").replace("/", "-")
    path = settings.cache / "base-configs" / f"{key}.json"
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        kept = None
    if isinstance(kept, dict):
        return kept
    found = image_of(locked, registries).config
    files.keep(path, json.dumps(found))
    return found


def skeleton(locked: LockedBase, registries: Registries, settings: Settings) -> Skeleton:
    """What the image that is locked for one platform has. Raises as ``image_of`` does."""
    name = locked.image.partition("@")[0]
    return skeletons.read(name, _own(locked, registries), registries, settings)


def _own(locked: LockedBase, registries: Registries) -> str:
    """The digest of the platform's own image."""
    reference = f"{locked.image.partition('@')[0]}@{locked.digest}"
    found = registries.manifest(reference)
    own = None
    if found:
        rows = (one.digest for one in found.manifests if one.platform == locked.platform)
        own = found.digest if found.config else next(rows, None)
    if own is None:
        raise _unreadable(reference, f"the registry does not have it for {locked.platform}")
    return own


def _images(
    name: str, found: Manifest, registries: Registries
) -> dict[str, tuple[str, Mapping[str, Any]]]:
    """The digest and the configuration of each platform's image, by platform."""
    if found.config:
        config = _config(name, found.digest, found.config, registries)
        platform = f"{config.get('os', 'linux')}/{config.get('architecture')}"
        return {platform: (found.digest, config)}
    known = {one.platform: one.digest for one in found.manifests if one.platform in set(Platform)}
    images = {}
    for platform, digest in known.items():
        image = registries.manifest(f"{name}@{digest}")
        if image is None or image.config is None:
            raise _unreadable(f"{name}@{digest}", "the registry does not have it")
        images[platform] = digest, _config(name, digest, image.config, registries)
    return images


def _config(name: str, image: str, config: Descriptor, registries: Registries) -> Mapping[str, Any]:
    reference = f"{name}@{image}"
    data = registries.read_blob(name, config.digest)
    if data is None:
        raise _unreadable(reference, "the registry does not have its configuration")
    try:
        found = json.loads(data)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise _unreadable(reference, "its configuration is not JSON")
    return found


def _environment(config: Mapping[str, Any]) -> Environment:
    rows = (config.get("config") or {}).get("Env") or ()
    pairs = (str(row).partition("=") for row in rows)
    return tuple(sorted({name: value for name, _, value in pairs}.items()))


def _lacks(
    base: Base, wanted: Iterable[Platform], images: Mapping[str, object], found: Manifest
) -> Problem | None:
    lacks = sorted({*wanted} - images.keys())
    if not lacks:
        return None
    has = {one.platform for one in found.manifests} or images.keys()
    listed = ", ".join(sorted(one for one in has if not one.startswith("unknown")))
    what = f"{base.image} has no image for {', '.join(lacks)}, only for {listed}"
    fix = "write the digest of the index of all platforms, not that of one platform's image"
    if not is_pinned(base):
        fix = "write an image that has them, or `suite:` to make the base from Debian packages"
    return Problem(code="base-other-platform", where=_where(base), what=what, fix=fix)


def _unknown(base: Base) -> Problem:
    name = base.image.partition("@")[0]
    fix = (
        f"copy the digest from the registry: docker buildx imagetools inspect {name}"
        if is_pinned(base)
        else "fix the reference, or write `suite:` to make the base from Debian packages"
    )
    what = f"its registry does not have {base.image}"
    return Problem(code="base-unknown", where=_where(base), what=what, fix=fix)


def _where(base: Base) -> str:
    return str(base.where("image") or base.name)


def _unreadable(reference: str, why: str) -> FactoryError:
    fix = "try again later, or use another image"
    return fail(SetupError, "base-unreadable", f"{reference} cannot be read: {why}", fix=fix)
