"""Writes bake files: which targets Buildx builds, from which contexts, and where results go."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from imagefactory.building import bases, builders, layouts
from imagefactory.building.contexts import Contexts
from imagefactory.building.loopback import Loopback
from imagefactory.building.stack.stack import Stack
from imagefactory.errors import InputError, fail
from imagefactory.matrix.cell import Cell
from imagefactory.planning.cell_plan import BaseImage, CellPlan
from imagefactory.settings import Settings
from imagefactory.system.archive import EPOCH

#: 1980-01-01, the first date that a wheel's files can have.
BASE_EPOCH = str(EPOCH)
#: zstd level 1 costs little more than storing; registries keep the blobs as they are.
COMPRESSION = "compression=zstd,compression-level=1,force-compression=true,oci-mediatypes=true"
#: The variable of Buildx's client that becomes the secret ``indexes``: no file holds it.
ACCOUNTS = "IMAGEFACTORY_INDEX_ACCOUNTS"
NO_PROVENANCE = ["type=provenance,disabled=true"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BakeOptions:
    """How targets are baked.

    Attributes:
        uncached: whose steps run even if BuildKit has them cached: those of no target, of the
            cells, or of all targets, bases included.
        cache: repository for build caches, a tag for each target; None for no registry cache.
        load: whether finished images are loaded into the engine, because the builder has an image
            store of its own.
        output: folder for OCI layouts of the images; None for the engine's store.
        loopback: has the layers of wheels, and takes the images for ``output``, where the builder
            reaches it.
        layers: folder to make all layers of wheels in, anew; None for the cache folder.
    """

    uncached: Literal["none", "cells", "all"] = "none"
    cache: str | None = None
    load: bool = False
    output: Path | None = None
    loopback: Loopback | None = None
    layers: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelBake:
    """A wheel to bake: its context is written, and a tar file with the result goes to ``archive``.

    ``stage`` is the stage of its Dockerfile to build; ``builder`` the base that it runs on, with
    compilers if ``compiles``.
    """

    context: Path
    archive: Path
    stage: str
    builder: BaseImage
    compiles: bool = False


def write_cells(
    contexts: Contexts,
    plans: Sequence[CellPlan],
    builder_bases: Mapping[str, BaseImage],
    stacks: Mapping[str, Stack],
    options: BakeOptions,
    name: str = "docker-bake.json",
) -> Path:
    """Write contexts and the bake file ``name`` for ``plans``; returns the bake file's path.

    ``builder_bases`` is, by the name of the base, that base for the build platform; ``stacks`` are
    the layers of each cell. Raises InputError if a base is missing, and the errors of
    ``bases.contexts``.
    """
    targets: dict[str, Any] = {}
    for plan in plans:
        builder = _builder(plan, builder_bases)
        first = _base_target(builder, "builder")
        if first not in targets:
            targets[first] = _base_entry(contexts, builder, "builder")
        stack = stacks[plan.cell.name]
        entry = _cell_entry(contexts.write_cell(plan, stack), plan, first, stack)
        targets[plan.cell.name] = {**entry, "output": [_output(plan.cell, options)]}
        if options.loopback:
            entry["contexts"]["packages"] = options.loopback.packages(plan.cell, stack.image)
        if options.loopback and options.output:
            targets[plan.cell.name]["tags"] = [options.loopback.name(plan.cell)]
    cells = [plan.cell.name for plan in plans]
    for target in {"none": [], "cells": cells, "all": list(targets)}[options.uncached]:
        targets[target]["no-cache"] = True
    for target, refs in builders.caches(options.cache, targets).items() if options.cache else ():
        targets[target] |= refs
    return _write(contexts.folder / name, targets, default=cells)


def _builder(plan: CellPlan, bases: Mapping[str, BaseImage]) -> BaseImage:
    name = plan.cell.flavor.base.name
    if name not in bases:
        what = f"{name} is not locked for the platform that builds"
        fix = "run imagefactory lock; the base's image must exist for the build platform, too"
        raise fail(InputError, "lock-uncovered", what, where=plan.cell.name, fix=fix)
    return bases[name]


def write_wheel(contexts: Contexts, wheel: WheelBake, options: BakeOptions) -> Path:
    """Write a bake file for one wheel; returns its path. Raises as ``bases.contexts`` does."""
    system: bases.Stage = "compiler" if wheel.compiles else "builder"
    name = _base_target(wheel.builder, system)
    entry = _wheel_entry(wheel, name, contexts.settings)
    targets = {
        name: _base_entry(contexts, wheel.builder, system),
        wheel.stage: {**entry, "no-cache": options.uncached != "none"},
    }
    return _write(wheel.context.with_suffix(".bake.json"), targets)


def _write(path: Path, targets: dict[str, Any], *, default: Iterable[str] = ()) -> Path:
    group = {"group": {"default": {"targets": list(default)}}} if default else {}
    text = json.dumps(_literal({**group, "target": targets}), indent=1)
    path.write_text(text + "\n", encoding="utf-8")
    return path


def _output(cell: Cell, options: BakeOptions) -> str:
    """Where the image of ``cell`` goes; that of a builder with its own store is loaded."""
    if options.loopback and options.output:
        # an empty `push` is true for BuildKit; Buildx itself pushes an image of the engine if it
        # says so, and the engine gets none
        return f"type=image,push=,store=false,unpack=false,{COMPRESSION}"
    if options.output:
        folder = layouts.folder_of(options.output, cell)
        return f"type=oci,tar=false,dest={folder},{COMPRESSION}"
    return f"type={'docker' if options.load else 'image'},{COMPRESSION}"


def _base_target(image: BaseImage, stage: bases.Stage) -> str:
    return f"{stage}-{image.base.name}-{image.platform.arch}"


def _base_entry(contexts: Contexts, image: BaseImage, stage: bases.Stage) -> dict[str, Any]:
    """The target of the shared stage of a base."""
    context = contexts.write_builder(_base_target(image, stage), image)
    named = bases.contexts(image, stage, contexts.settings)
    return {
        "context": str(context),
        "target": "builder",
        "platforms": [image.platform],
        "args": {"SOURCE_DATE_EPOCH": BASE_EPOCH},
        **({"contexts": named} if named else {}),
        **_secrets(contexts.settings),
    }


def _cell_entry(context: Path, plan: CellPlan, builder: str, stack: Stack) -> dict[str, Any]:
    return {
        "context": str(context),
        "contexts": {
            "builder": f"target:{builder}",
            "packages": stack.image,
            "sources": stack.sources,
        },
        "platforms": [plan.cell.platform],
        "tags": list(plan.cell.tags),
        "args": {"SOURCE_DATE_EPOCH": str(plan.epoch)},
        "attest": NO_PROVENANCE,
    }


def _wheel_entry(wheel: WheelBake, builder: str, settings: Settings) -> dict[str, Any]:
    return {
        "context": str(wheel.context),
        "contexts": {"builder": f"target:{builder}"},
        "target": wheel.stage,
        "output": [f"type=tar,dest={wheel.archive}"],
        "args": _index_args(settings),
        "attest": NO_PROVENANCE,
        **_secrets(settings, indexes=True),
    }


def _index_args(settings: Settings) -> dict[str, str]:
    first, *more = settings.indexes
    return {"UV_DEFAULT_INDEX": first, "UV_INDEX": " ".join(more)}


def secrets(settings: Settings) -> dict[str, str]:
    """The variables that a bake needs for its secrets: the credentials of the indexes as JSON."""
    accounts = settings.index_accounts()
    return {ACCOUNTS: json.dumps(accounts)} if accounts else {}


def _secrets(settings: Settings, *, indexes: bool = False) -> dict[str, list[str]]:
    found = [f"id=ca,src={settings.ca_bundle}"] if settings.ca_bundle else []
    if indexes and settings.index_accounts():
        found.append(f"id=indexes,env={ACCOUNTS}")
    return {"secret": found} if found else {}


def _literal(value: Any) -> Any:
    """``value`` with HCL's template marks escaped: bake expands ``${}`` and ``%{}`` in JSON too."""
    if isinstance(value, str):
        return value.replace("${", "$${").replace("%{", "%%{")
    if isinstance(value, dict):
        return {_literal(key): _literal(item) for key, item in value.items()}
    return [_literal(item) for item in value] if isinstance(value, list) else value
