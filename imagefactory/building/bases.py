"""Makes the systems that bases of Debian packages begin with; registries have the others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from imagefactory.locking.debian import files
from imagefactory.locking.lock import Deb
from imagefactory.planning.cell_plan import ROOT, BaseImage
from imagefactory.planning.context import key_of
from imagefactory.settings import Settings
from imagefactory.system import locks, ui
from imagefactory.system.archive import EPOCH

Stage = Literal["builder", "base"]


def contexts(image: BaseImage, stage: Stage, settings: Settings) -> dict[str, str]:
    """The named build contexts that ``stage`` of a base needs: none for an image of a registry.

    A system of packages is assembled when it is first needed, and kept in the cache folder. Raises
    SetupError for packages that are not available, InputError for those that cannot be assembled.
    """
    if image.locked.suite is None:
        return {}
    folder = folder_of(image, stage, settings)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locks.held(folder.with_name(f"{folder.name}.lock"), f"the {stage} image"):
        if not (folder / "index.json").is_file():
            _assemble(image, stage, image.locked.suite, folder, settings)
    (manifest,) = json.loads((folder / "index.json").read_text(encoding="utf-8"))["manifests"]
    return {ROOT: f"oci-layout://{folder}@{manifest['digest']}"}


def _assemble(image: BaseImage, stage: Stage, suite: str, folder: Path, settings: Settings) -> None:
    from imagefactory.building.debian import debian  # noqa: PLC0415 - only needed once per lock

    packages = files.fetch(_debs(image, stage), image.locked.created, settings)
    with ui.step(f"assembling {folder.name} from {len(packages)} Debian packages"):
        debian.assemble(packages, platform=image.platform, suite=suite, epoch=EPOCH, folder=folder)


def _debs(image: BaseImage, stage: Stage) -> tuple[Deb, ...]:
    locked = image.locked
    return locked.debs if stage == "base" else (*locked.debs, *locked.builder)


def folder_of(image: BaseImage, stage: Stage, settings: Settings) -> Path:
    """Where the system of ``stage`` is kept; the name covers the packages and the assembler."""
    key = key_of([image.digest, [deb.sha256 for deb in _debs(image, stage)]])
    name = f"{image.base.name}-{stage}-{image.platform.arch}-{key[:16]}"
    return settings.cache / "bases" / name
