"""Makes the systems that bases of Debian packages begin with; registries have the others."""

from __future__ import annotations

import json
from collections.abc import Iterable
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
#: What BuildKit 0.11 to 0.13 says when it has half of a layer of an OCI layout.
HALF_SENT = "unsupported offset"
#: How often systems are sent again in one build: when one fails, others may not arrive whole.
_ATTEMPTS = 3
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


class Resend:
    """Sends the systems in a bake file again, under other digests, when a builder has half of one.

    BuildKit cannot go on with a layer that it received half of, when a build was killed or another
    target failed, and it recognizes the half by its digest. The content is the same.
    """

    def __init__(self, file: Path) -> None:
        self._file, self._left = file, _ATTEMPTS

    def helps(self, errors: Iterable[str]) -> bool:
        """Whether the bake that ended with ``errors`` is worth another try."""
        if not self._left or not any(HALF_SENT in error for error in errors):
            return False
        self._left -= 1
        ui.say("the builder has half of a base, from a build that did not end: sending it again")
        return _rename(self._file)


def _rename(file: Path) -> bool:
    """Give the systems that a bake file names other digests; returns whether it names any."""
    from imagefactory.building.debian import layout  # noqa: PLC0415 - only after a failure

    targets = json.loads(file.read_text(encoding="utf-8"))
    renamed: dict[str, str] = {}
    for target in targets["target"].values():
        named = target.get("contexts", {})
        where = named.get(ROOT, "")
        if where.startswith(LAYOUT) and where not in renamed:
            folder = Path(where.removeprefix(LAYOUT).rpartition("@")[0])
            with locks.held(folder.with_name(f"{folder.name}.lock"), "a base"):
                renamed[where] = f"{LAYOUT}{folder}@{layout.rewrap(folder)}"
        if where in renamed:
            named[ROOT] = renamed[where]
    file.write_text(json.dumps(targets, indent=1) + "\n", encoding="utf-8")
    return bool(renamed)


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
