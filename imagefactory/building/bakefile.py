"""Writes what Buildx reads: a build context a cell, and one bake file for all of them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from imagefactory.building import builders
from imagefactory.errors import SetupError
from imagefactory.locking import indexes, wheelhouse
from imagefactory.planning import render
from imagefactory.planning.cell_plan import BaseImage, CellPlan
from imagefactory.settings import Settings

#: 1980-01-01, the first date that a wheel's files can have.
BASE_EPOCH = "315532800"
Uncached = Literal["none", "cells", "all"]


def write(
    folder: Path,
    plans: Sequence[CellPlan],
    *,
    build_bases: Mapping[str, BaseImage],
    settings: Settings,
    uv: Path,
    templates: Path,
    uncached: Uncached = "none",
    elsewhere: Mapping[str, str] | None = None,
    cache: str | None = None,
) -> Path:
    """Write contexts and ``docker-bake.json`` below ``folder``; returns the bake file's path.

    ``build_bases`` is, by the name of the base, that base for the build platform (where wheels are
    unpacked). For a builder that does not see the engine's images ``elsewhere`` is, by image, what
    it can have instead (empty if there is none of them to see); its images are loaded into the
    engine. ``cache`` is a repository for cache refs. The steps of ``uncached`` targets run whether
    BuildKit knows them or not. Raises SetupError for a wheel that was locked from a local folder
    and is now in no folder and at no index, or that was locked by an address which has another file
    now.
    """
    targets: dict[str, Any] = {}
    for plan in plans:
        base, builder = plan.base, build_bases[plan.cell.flavor.base.name]
        for image, stage in ((builder, "builder"), (base, "base")):
            name = _base_target(image, stage)
            if name not in targets:
                context = _write_base(folder / name, image, uv=uv, templates=templates)
                targets[name] = _base_entry(context, image, stage, settings)
        targets[plan.cell.name] = _cell_entry(
            _write_cell(folder / plan.cell.name, plan, settings), plan, builder, settings
        )
    for name, target in targets.items():
        if uncached == "all" or (
            uncached == "cells" and name in {plan.cell.name for plan in plans}
        ):
            target["no-cache"] = True
    for name, refs in builders.caches(cache, targets).items() if cache else ():
        targets[name] |= refs
    if elsewhere is not None:
        _for_elsewhere(targets, elsewhere)
    group = {"default": {"targets": [plan.cell.name for plan in plans]}}
    path = folder / "docker-bake.json"
    path.write_text(
        json.dumps(_literal({"group": group, "target": targets}), indent=1) + "\n", encoding="utf-8"
    )
    return path


def _for_elsewhere(targets: Mapping[str, Any], images: Mapping[str, str]) -> None:
    """Let a builder with a store of its own have the images that it asks for.

    And give its own to the engine.
    """
    for target in targets.values():
        contexts = target.get("contexts", {})
        for name, swap in contexts.items():
            contexts[name] = images.get(swap.removeprefix(builders.SWAPPED), swap)
        if "tags" in target:
            target["output"] = [
                "type=docker,compression=zstd,compression-level=1,force-compression=true,oci-mediatypes=true"
            ]


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
        # level 1 costs little more than storing; the receiving registry keeps the blobs as they are
        "output": [
            "type=image,compression=zstd,compression-level=1,force-compression=true,oci-mediatypes=true"
        ],
        "args": {
            "SOURCE_DATE_EPOCH": str(plan.epoch),
            "UV_DEFAULT_INDEX": settings.indexes[0],
            "UV_INDEX": " ".join(settings.indexes[1:]),
        },
        "attest": ["type=provenance,disabled=true"],
        **_secrets(settings),
    }


def _secrets(settings: Settings) -> dict[str, list[str]]:
    return {"secret": [f"id=ca,src={settings.ca_bundle}"]} if settings.ca_bundle else {}


def _write_base(folder: Path, image: BaseImage, *, uv: Path, templates: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    _write_file(
        folder / "Dockerfile",
        render.base_dockerfile(templates, image.base, image.reference).encode(),
    )
    if not (folder / "uv").exists() or (folder / "uv").stat().st_size != uv.stat().st_size:
        shutil.copy2(uv, folder / "uv")
    return folder


def _write_cell(folder: Path, plan: CellPlan, settings: Settings) -> Path:
    write_files(folder, plan.files)
    (folder / "wheels").mkdir()
    elsewhere = []
    for wheel in plan.local_wheels:
        found = (
            wheelhouse.of(wheel, settings)
            if wheel.is_built or wheel.has_address
            else indexes.local(wheel, settings.find_links)
        )
        if found:
            link(found, folder / "wheels" / wheel.filename)
        else:
            elsewhere.append(wheel)
    gone = indexes.missing(elsewhere, settings) if elsewhere else []
    if gone:
        raise SetupError(gone)
    return folder


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write a build context anew."""
    if folder.exists():
        shutil.rmtree(folder)
    for name, data in files.items():
        _write_file(folder / name, data)


def write_wheel(
    folder: Path,
    context: Path,
    archive: Path,
    builder: BaseImage,
    *,
    settings: Settings,
    uv: Path,
    templates: Path,
    uncached: bool,
    target: str = "wheel",
    elsewhere: Mapping[str, str] | None = None,
) -> Path:
    """Write a bake file for one wheel, whose context is written; what is made goes to ``archive``,
    a tar file.

    ``target`` is the stage of its Dockerfile to make; ``elsewhere`` is as for ``write``.
    """
    name = _base_target(builder, "builder")
    base = _write_base(folder / name, builder, uv=uv, templates=templates)
    targets = {
        name: _base_entry(base, builder, "builder", settings),
        target: {
            "context": str(context),
            "contexts": {"builder": f"target:{name}"},
            "target": target,
            "no-cache": uncached,
            "output": [f"type=tar,dest={archive}"],
            "args": {
                "UV_DEFAULT_INDEX": settings.indexes[0],
                "UV_INDEX": " ".join(settings.indexes[1:]),
            },
            "attest": ["type=provenance,disabled=true"],
            **_secrets(settings),
        },
    }
    if elsewhere is not None:
        _for_elsewhere(targets, elsewhere)
    path = context.with_suffix(".bake.json")
    path.write_text(json.dumps(_literal({"target": targets}), indent=1) + "\n", encoding="utf-8")
    return path


def _write_file(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def link(source: Path, target: Path) -> None:
    """Put a file into a build context, without a copy where the file system can."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _literal(value: Any) -> Any:
    """``value`` with HCL's template marks escaped.

    Bake expands ``${}`` and ``%{}`` in JSON strings too.
    """
    if isinstance(value, str):
        return value.replace("${", "$${").replace("%{", "%%{")
    if isinstance(value, dict):
        return {_literal(key): _literal(item) for key, item in value.items()}
    return [_literal(item) for item in value] if isinstance(value, list) else value
