"""Makes what an image has below its patches: base, compilers and wheels, as an OCI layout.

    wheels -> trim -> belt, compilers -> blob -> layout

reads what each wheel installs, leaves out what is never used, makes sure of torch, links compilers
to the libraries that they use, compresses each layer once, and lists the layers as an image.
Nothing is unpacked on the disk, no program of the image runs, and the same wheels give the same
bytes on any machine. Layers are kept by what decides their content.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from imagefactory.building.bases import LAYOUT
from imagefactory.building.stack import bottom, layout
from imagefactory.building.stack.making import Growing, Keys, Maker
from imagefactory.errors import SetupError, fail
from imagefactory.locking import wheelhouse
from imagefactory.planning.cell_plan import CellPlan
from imagefactory.planning.image_config import WORKING_FOLDER
from imagefactory.planning.layers import MADE_BY
from imagefactory.settings import Settings
from imagefactory.system.archive import EPOCH
from imagefactory.system.collection import without_collection

#: Folder of the layers, below the cache folder, and of the layouts, below a project's contexts.
LAYERS, LAYOUTS = "layers-made", "layouts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """What a cell's image has below its patches.

    Attributes:
        image: build context with base, compilers and wheels: an OCI layout by digest.
        sources: build context with the wheels that patches change, without their libraries.
        report: the torch after each layer, and what was left out of them.
    """

    image: str
    sources: str
    report: Mapping[str, Any]


def make(
    plan: CellPlan,
    layouts: Path,
    settings: Settings,
    *,
    kept: Path | None = None,
    growing: Growing | None = None,
) -> Stack:
    """Make the layers of ``plan`` that are not kept yet, and the layouts, in ``layouts``.

    Layers are kept in the cache folder, or in the folder ``kept``. ``growing`` is called with the
    layers so far whenever one was made. Raises SetupError for what is not available,
    CheckFailedError for wheels that would replace torch.
    """
    kept = kept or settings.cache / LAYERS
    kept.mkdir(parents=True, exist_ok=True)
    below = bottom.make(plan.base, kept, settings)
    with ExitStack() as opened, wheelhouse.Collection(settings) as files, without_collection():
        try:
            above = Maker(plan, kept, files, opened).make(
                growing and (lambda made: growing([*below.layers, *made]))
            )
        except zipfile.BadZipFile as error:
            what, fix = f"a locked wheel cannot be unpacked: {error}", "lock another version"
            raise fail(SetupError, "wheel-broken", what, where=plan.cell.name, fix=fix) from None
    purposes = [purpose for purpose, _ in above.layers]
    config = {
        **_with_history(below.config, purposes),
        "created": _date(plan.epoch),
        # the instruction WORKDIR would make BuildKit unpack all layers, to add an empty one
        "config": {**below.config.get("config", {}), "WorkingDir": WORKING_FOLDER},
    }
    layers = [*below.layers, *(one for _, one in above.layers)]
    image, sources = layouts / plan.cell.name, layouts / f"{plan.cell.name}-sources"
    platform = {name: config[name] for name in ("os", "architecture")}
    return Stack(
        image=f"{LAYOUT}{image}@{layout.write(image, layers, config)}",
        sources=f"{LAYOUT}{sources}@{layout.write(sources, [above.sources], platform)}",
        report=above.report,
    )


def folders_of(plan: CellPlan) -> set[str]:
    """The names of the folders in ``LAYERS`` with the layers of ``plan``, but for its base's."""
    return Keys.make(plan).all()


def _with_history(config: Mapping[str, Any], purposes: Sequence[str]) -> dict[str, Any]:
    created = _date(EPOCH)
    added = [{"created": created, "created_by": f"{MADE_BY}{purpose}"} for purpose in purposes]
    return {**config, "history": [*config.get("history", ()), *added]}


def _date(epoch: int) -> str:
    """A date as images have it; BuildKit keeps that of an image that it adds layers to."""
    return datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
