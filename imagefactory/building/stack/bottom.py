"""The layers of a base, as they are in every image on it, and its configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imagefactory.building import bases
from imagefactory.building.blob import Blob
from imagefactory.errors import SetupError, fail
from imagefactory.locking import registry_bases
from imagefactory.planning.cell_plan import ROOT, BaseImage
from imagefactory.settings import Settings
from imagefactory.system import locks, ui
from imagefactory.system.registry import Registries


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottom:
    """The layers of a base from the bottom up, and its configuration."""

    layers: tuple[Blob, ...]
    config: Mapping[str, Any]


def make(image: BaseImage, folder: Path, settings: Settings) -> Bottom:
    """The layers of a base, kept in ``folder``.

    Those of Debian packages are assembled, those of a registry are downloaded. Raises SetupError
    for packages or images that are not available.
    """
    below = Bottom(layers=(), config={})
    if not image.locked.suite:
        below = _downloaded(image, folder)
    named = bases.contexts(image, "base", settings)
    if ROOT not in named:
        return below
    layout = Path(named[ROOT].removeprefix(bases.LAYOUT).rpartition("@")[0])
    own = _assembled(layout)
    if image.locked.suite:
        return own
    history = [*below.config.get("history", ()), *own.config.get("history", ())]
    config = {**below.config, "history": history}
    return Bottom(layers=(*below.layers, *own.layers), config=config)


def _assembled(layout: Path) -> Bottom:
    """The only layer of an assembled system."""
    (entry,) = _read(layout / "index.json")["manifests"]
    manifest = _read(_blob(layout, entry["digest"]))
    config = _read(_blob(layout, manifest["config"]["digest"]))
    (diff_id,), (layer,) = config["rootfs"]["diff_ids"], manifest["layers"]
    made = Blob(
        digest=layer["digest"],
        size=layer["size"],
        media_type=layer["mediaType"],
        diff_id=diff_id,
        path=_blob(layout, layer["digest"]),
    )
    return Bottom(layers=(made,), config=config)


def _downloaded(image: BaseImage, folder: Path) -> Bottom:
    """The layers of an image of a registry, as they are there."""
    registries = Registries()
    found = registry_bases.image_of(image.locked, registries)
    layers = []
    for layer, diff_id in zip(found.layers, found.config["rootfs"]["diff_ids"], strict=True):
        target = folder / f"base-{layer.digest.removeprefix('sha256:')}"
        with locks.held(folder / f"{target.name}.lock", "a layer of the base"):
            if not target.is_file():
                with ui.step(f"fetching a layer of {found.name}, {ui.size(layer.size)}"):
                    part = target.with_suffix(".part")
                    if not registries.save_blob(found.name, layer.digest, part):
                        what = f"{found.name} does not have its layer {layer.digest}"
                        fix = "use another image; try again later"
                        raise fail(SetupError, "base-unreadable", what, fix=fix)
                    part.rename(target)
        media = layer.media_type.replace("vnd.docker.image.rootfs.diff", "vnd.oci.image.layer.v1")
        media = media.replace(".tar.gzip", ".tar+gzip")
        layers.append(
            Blob(
                digest=layer.digest,
                size=layer.size,
                media_type=media,
                diff_id=diff_id,
                path=target,
            )
        )
    return Bottom(layers=tuple(layers), config=found.config)


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _blob(layout: Path, digest: str) -> Path:
    return layout / "blobs" / Path(*digest.split(":"))
