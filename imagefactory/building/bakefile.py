"""Writes bake files: which targets Buildx builds, from which contexts, and where results go."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from imagefactory.building import builders, layouts
from imagefactory.building.contexts import Contexts
from imagefactory.matrix.cell import Cell
from imagefactory.planning.cell_plan import BaseImage, CellPlan
from imagefactory.settings import Settings

#: 1980-01-01, the first date that a wheel's files can have.
BASE_EPOCH = "315532800"
#: zstd level 1 costs little more than storing; registries keep the blobs as they are.
COMPRESSION = "compression=zstd,compression-level=1,force-compression=true,oci-mediatypes=true"
NO_PROVENANCE = ["type=provenance,disabled=true"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BakeOptions:
    """How targets are baked.

    Attributes:
        uncached: whose steps run even if BuildKit has them cached: those of no target, of the
            cells, or of all targets, bases included.
        cache: repository for build caches, a tag for each target; None for no registry cache.
        substitutes: engine image -> build context that stands in for it on a builder that has an
            image store of its own; None for a builder that sees the engine's images.
        output: folder for OCI layouts of the images; None for the engine's store.
    """

    uncached: Literal["none", "cells", "all"] = "none"
    cache: str | None = None
    substitutes: Mapping[str, str] | None = None
    output: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelBake:
    """A wheel to bake: its context is written, and a tar file with the result goes to ``archive``.

    ``stage`` is the stage of its Dockerfile to build; ``builder`` the base that it runs on.
    """

    context: Path
    archive: Path
    stage: str
    builder: BaseImage


def write_cells(
    contexts: Contexts,
    plans: Sequence[CellPlan],
    builder_bases: Mapping[str, BaseImage],
    options: BakeOptions,
) -> Path:
    """Write contexts and ``docker-bake.json`` for ``plans``; returns the bake file's path.

    ``builder_bases`` is, by the name of the base, that base for the build platform. Raises
    SetupError as ``Contexts.write_cell`` does.
    """
    targets: dict[str, Any] = {}
    for plan in plans:
        builder = builder_bases[plan.cell.flavor.base.name]
        for image, stage, write in (
            (builder, "builder", contexts.write_builder),
            (plan.base, "base", contexts.write_base),
        ):
            name = _base_target(image, stage)
            if name not in targets:
                context = write(name, image)
                targets[name] = _base_entry(context, image, stage, contexts.settings)
        context = contexts.write_cell(plan)
        entry = _cell_entry(context, plan, builder, contexts.settings)
        targets[plan.cell.name] = {**entry, "output": [_output(plan.cell, options)]}
    cells = [plan.cell.name for plan in plans]
    for name in {"none": [], "cells": cells, "all": list(targets)}[options.uncached]:
        targets[name]["no-cache"] = True
    for name, refs in builders.caches(options.cache, targets).items() if options.cache else ():
        targets[name] |= refs
    path = contexts.folder / "docker-bake.json"
    return _write(path, targets, options, default=cells)


def write_wheel(contexts: Contexts, wheel: WheelBake, options: BakeOptions) -> Path:
    """Write a bake file for one wheel; returns its path."""
    name = _base_target(wheel.builder, "builder")
    settings = contexts.settings
    base = contexts.write_builder(name, wheel.builder)
    targets = {
        name: _base_entry(base, wheel.builder, "builder", settings),
        wheel.stage: {
            "context": str(wheel.context),
            "contexts": {"builder": f"target:{name}"},
            "target": wheel.stage,
            "no-cache": options.uncached != "none",
            "output": [f"type=tar,dest={wheel.archive}"],
            "args": _index_args(settings),
            "attest": NO_PROVENANCE,
            **_secrets(settings),
        },
    }
    return _write(wheel.context.with_suffix(".bake.json"), targets, options)


def _write(
    path: Path, targets: dict[str, Any], options: BakeOptions, *, default: Iterable[str] = ()
) -> Path:
    if options.substitutes is not None:
        _substitute(targets, options.substitutes)
    group = {"group": {"default": {"targets": list(default)}}} if default else {}
    text = json.dumps(_literal({**group, "target": targets}), indent=1)
    path.write_text(text + "\n", encoding="utf-8")
    return path


def _substitute(targets: Mapping[str, Any], substitutes: Mapping[str, str]) -> None:
    """Give a builder with a store of its own what it lacks."""
    for target in targets.values():
        contexts = target.get("contexts", {})
        for name, swap in contexts.items():
            contexts[name] = substitutes.get(swap.removeprefix(builders.SWAPPED), swap)


def _output(cell: Cell, options: BakeOptions) -> str:
    """Where the image of ``cell`` goes; that of a builder with its own store is loaded."""
    if options.output:
        folder = layouts.folder_of(options.output, cell)
        return f"type=oci,tar=false,dest={folder},{COMPRESSION}"
    return f"type={'image' if options.substitutes is None else 'docker'},{COMPRESSION}"


def _base_target(image: BaseImage, stage: str) -> str:
    return f"{stage}-{image.base.name}-{image.platform.arch}"


def _base_entry(context: Path, image: BaseImage, stage: str, settings: Settings) -> dict[str, Any]:
    return {
        "context": str(context),
        "target": stage,
        "platforms": [image.platform],
        # the dates in its history become those of every image on it
        "args": {"SOURCE_DATE_EPOCH": BASE_EPOCH},
        **({"contexts": {image.reference: image.swap}} if image.swap else {}),
        **_secrets(settings),
    }


def _cell_entry(
    context: Path, plan: CellPlan, builder: BaseImage, settings: Settings
) -> dict[str, Any]:
    return {
        "context": str(context),
        "contexts": {
            "builder": f"target:{_base_target(builder, 'builder')}",
            "base": f"target:{_base_target(plan.base, 'base')}",
        },
        "platforms": [plan.cell.platform],
        "tags": list(plan.cell.tags),
        "args": {"SOURCE_DATE_EPOCH": str(plan.epoch), **_index_args(settings)},
        "attest": NO_PROVENANCE,
        **_secrets(settings),
    }


def _index_args(settings: Settings) -> dict[str, str]:
    first, *more = settings.indexes
    return {"UV_DEFAULT_INDEX": first, "UV_INDEX": " ".join(more)}


def _secrets(settings: Settings) -> dict[str, list[str]]:
    return {"secret": [f"id=ca,src={settings.ca_bundle}"]} if settings.ca_bundle else {}


def _literal(value: Any) -> Any:
    """``value`` with HCL's template marks escaped: bake expands ``${}`` and ``%{}`` in JSON too."""
    if isinstance(value, str):
        return value.replace("${", "$${").replace("%{", "%%{")
    if isinstance(value, dict):
        return {_literal(key): _literal(item) for key, item in value.items()}
    return [_literal(item) for item in value] if isinstance(value, list) else value
