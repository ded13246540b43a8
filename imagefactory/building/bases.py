"""Makes the systems that bases of Debian packages begin with; registries have the others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from imagefactory.locking import registry_bases
from imagefactory.locking.debian import files
from imagefactory.locking.lock import Deb
from imagefactory.planning.cell_plan import ROOT, BaseImage
from imagefactory.planning.context import key_of
from imagefactory.settings import Settings
from imagefactory.system import locks, ui
from imagefactory.system.archive import EPOCH
from imagefactory.system.registry import Registries

Stage = Literal["builder", "compiler", "base"]
LAYOUT = "oci-layout://"


def contexts(image: BaseImage, stage: Stage, settings: Settings) -> dict[str, str]:
    """The named build contexts that ``stage`` of a base needs: none if no packages are locked.

    What is made of packages (a whole system, or what is added to an image of a registry) is
    assembled when it is first needed, and kept in the cache folder. Raises SetupError for packages
    or images that are not available, InputError for packages that cannot be assembled.
    """
    if not (_debs(image, stage) if stage == "base" else image.locked.all_debs):
        return {}
    folder = folder_of(image, stage, settings)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locks.held(folder.with_name(f"{folder.name}.lock"), f"the {stage} image"):
        if not (folder / "index.json").is_file():
            _assemble(image, stage, folder, settings)
    (manifest,) = json.loads((folder / "index.json").read_text(encoding="utf-8"))["manifests"]
    return {ROOT: f"{LAYOUT}{folder}@{manifest['digest']}"}


def _assemble(image: BaseImage, stage: Stage, folder: Path, settings: Settings) -> None:
    from imagefactory.building.debian import debian, overlay  # noqa: PLC0415 - once per lock

    locked, platform = image.locked, image.platform
    packages = files.fetch(_debs(image, stage), locked.created, settings)
    below = None if locked.suite else registry_bases.skeleton(locked, Registries(), settings)
    with ui.step(f"assembling {folder.name} from {len(packages)} Debian packages"):
        if below:
            overlay.assemble(packages, below, platform=platform, epoch=EPOCH, folder=folder)
        else:
            debian.assemble(
                packages, platform=platform, suite=locked.suite or "", epoch=EPOCH, folder=folder
            )


def _debs(image: BaseImage, stage: Stage) -> tuple[Deb, ...]:
    locked = image.locked
    match stage:
        case "base":
            return locked.debs
        case "builder":
            return (*locked.debs, *locked.builder)
        case "compiler":
            return locked.all_debs


def folder_of(image: BaseImage, stage: Stage, settings: Settings) -> Path:
    """Where the system of ``stage`` is kept; the name covers the packages and the assembler."""
    key = key_of([image.digest, [deb.sha256 for deb in _debs(image, stage)]])
    name = f"{image.base.name}-{stage}-{image.platform.arch}-{key[:16]}"
    return settings.cache / "bases" / name
