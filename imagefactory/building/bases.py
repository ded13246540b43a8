"""Makes the systems that bases of Debian packages begin with; registries have the others."""

from __future__ import annotations

import json
import shutil
import tarfile
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Literal

from imagefactory.errors import InputError, Problem
from imagefactory.locking import registry_bases
from imagefactory.locking.debian import files, packages
from imagefactory.locking.debian.skeleton import STATUS
from imagefactory.locking.lock import Deb, LockedBase
from imagefactory.planning.cell_plan import ROOT, BaseImage
from imagefactory.planning.context import key_of
from imagefactory.settings import Settings
from imagefactory.system import locks, ui, zstd
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
    debs = files.fetch(_debs(image, stage), locked.created, settings)
    below = None if locked.suite else registry_bases.skeleton(locked, Registries(), settings)
    with (
        ui.step(f"assembling {folder.name} from {len(debs)} Debian packages"),
        tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as name,
    ):
        part, suite = Path(name) / "layout", locked.suite or ""
        if below:
            made = overlay.assemble(debs, below, platform=platform, epoch=EPOCH, folder=part)
        else:
            made = debian.assemble(debs, platform=platform, suite=suite, epoch=EPOCH, folder=part)
        before = packages.installed((below and below.status) or "")
        _check(part / "blobs" / Path(*made.layer.split(":")), locked, packages.lacking(before, ()))
        shutil.rmtree(folder, ignore_errors=True)
        part.rename(folder)


def _check(layer: Path, locked: LockedBase, before: Collection[str]) -> None:
    """Raise InputError if the system in ``layer`` has not all that its packages depend on.

    What the image below it lacked ``before`` is its own affair.
    """
    with zstd.reader(layer) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
        status = next(file for one in tar if one.name == STATUS and (file := tar.extractfile(one)))
        text = status.read().decode(errors="surrogateescape")
    problems = [
        Problem(
            code="lock-incomplete",
            where=f"wheels.lock: {locked.name} {locked.platform}",
            what=f"{what}, which is not among its packages",
            fix="restore the row of that package, or lock anew: imagefactory lock --upgrade-base",
        )
        for what in packages.lacking(packages.installed(text), locked.packages)
        if what not in before
    ]
    if problems:
        raise InputError(problems)


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
