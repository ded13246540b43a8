"""Reads an image through the engine, and judges its content without running it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from imagefactory.building import bases
from imagefactory.errors import SetupError
from imagefactory.locking import registry_bases
from imagefactory.planning import context, image_config
from imagefactory.planning.cell_plan import ROOT, CellPlan
from imagefactory.settings import Settings
from imagefactory.system import platforms
from imagefactory.system.engine import Engine
from imagefactory.system.registry import Registries
from imagefactory.verifying.outside import (
    configured,
    installed,
    layers,
    patched,
    proving,
    system,
)
from imagefactory.verifying.outside.installed import Python
from imagefactory.verifying.outside.inventory import Wheels, sha256
from imagefactory.verifying.outside.judged import Finding, Judged
from imagefactory.verifying.outside.judging import judge
from imagefactory.verifying.outside.layers import Contents
from imagefactory.verifying.outside.tree import DamagedError, Entry, Layer, merged
from imagefactory.verifying.outside.want import Want, Wants

#: The largest file, and the number of files, of which a wheel is asked whether RECORD is right.
MOST_BYTES, MOST_FILES = 64 << 20, 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """What is known about the base of an image: its files and its configuration."""

    layer: Layer
    config: Mapping[str, Any]


def judge_with(
    engine: Engine, plan: CellPlan, settings: Settings, reading: Future[None] | None = None
) -> Callable[[str], Judged]:
    """A function that judges the image of a digest, which should be that of ``plan``.

    It waits for ``reading`` (see ``read_ahead``), so that no layer is read twice.
    """

    def judge(digest: str) -> Judged:
        if reading:
            reading.result()
        return observe(engine, digest, plan, settings)

    return judge


def read_ahead(layouts: Iterable[Path], settings: Settings) -> None:
    """Read the layers in OCI layouts while the engine loads them.

    What is found is kept by the digests of the layers, to which each is compared. What is wrong is
    found again by ``observe``, in the engine's own copy.
    """
    for layout in layouts:
        with suppress(DamagedError, OSError):
            layers.read_layout(layout, settings.cache / "layers")


def observe(engine: Engine, digest: str, plan: CellPlan, settings: Settings) -> Judged:
    """Judge the image ``digest``, which should be that of ``plan``.

    The patches of one that is emulated here are proven, too. Raises SetupError if the engine fails
    to give the files for that.
    """
    began = time.monotonic()
    try:
        contents = _read(engine, digest, settings.cache / "layers")
        found = examine(contents, plan, base_of(plan, contents, settings), Wheels(settings))
    except DamagedError as error:
        found = Judged(error=str(error), damaged=True)
    except SetupError as error:
        found = Judged(error=error.problems[0].what)
    found = replace(found, seconds=time.monotonic() - began)
    if platforms.is_native(plan.cell.platform) or not found.clean:
        return found
    began = time.monotonic()
    proofs, left = proving.prove(engine, digest, plan)
    took = time.monotonic() - began
    return replace(found, proofs=proofs, to_prove=left, proof_seconds=took)


def _read(engine: Engine, digest: str, cache: Path) -> Contents:
    """The image, from the engine's own files if they can be read, which saves a copy."""
    folder = engine.blob_folder(digest)
    contents = layers.read_folder(folder, digest, cache) if folder else None
    if contents is None:
        with engine.saved(digest) as stream:
            contents = layers.read_stream(stream, digest, cache)
    return contents


def base_of(plan: CellPlan, contents: Contents, settings: Settings) -> Base:
    """The base of ``plan``: assembled from its packages, an image of a registry, or both.

    The layers of a registry are taken from the image, by their digests. Raises SetupError for
    packages or an image that are not available, DamagedError if ``contents`` has other layers.
    """
    below, config = _of_registry(plan, contents, settings)
    named = bases.contexts(plan.base, "base", settings)
    if ROOT in named:
        folder = Path(named[ROOT].removeprefix(bases.LAYOUT).rpartition("@")[0])
        own = layers.read_layout(folder, settings.cache / "layers")
        below, config = (*below, *own.layers), config or own.config
    return Base(layer=merged(below), config=config)


def _of_registry(
    plan: CellPlan, contents: Contents, settings: Settings
) -> tuple[tuple[Layer, ...], Mapping[str, Any]]:
    """The layers of a base of a registry, which are the lowest of the image, and its configuration.

    None for a base of packages.
    """
    locked = plan.base.locked
    if locked.suite:
        return (), {}
    config = registry_bases.config_of(locked, Registries(), settings)
    listed = (config.get("rootfs") or {}).get("diff_ids") or [""]
    below = contents.layers[: len(listed)]
    if [layer.unpacked for layer in below] != listed:
        what = f"the image is not built on the layers of {plan.base.reference}"
        raise DamagedError(what)
    return below, config


def examine(contents: Contents, plan: CellPlan, base: Base, source: Wheels) -> Judged:
    """Judge what an image contains. Raises SetupError if a locked wheel is not available."""
    tree = merged(contents.layers)
    found = source.inventories(
        [*plan.resolution.wheels, *(plan.toolchain.wheels if plan.toolchain else ())]
    )
    obsolete = system.obsolete(tree)
    install = context.layers_of(plan.resolution)
    top = next((one.wheels for one in install if one.name == _patched_layer(plan)), ())
    series = patched.apply(plan.series, plan.cell.build, top, found, source, obsolete)
    wants, python = Wants(), _python(plan)
    _add_base(wants, base.layer)
    system.environment(wants, python, base.layer)
    gone = [installed.install(wants, one.wheels, found, python, tree) for one in install]
    if plan.toolchain:
        installed.compilers(wants, plan.toolchain, found, python)
    for name, (digest, size) in series.files.items():
        want = Want(origin="a patch", hashes=frozenset({digest}), size=size)
        wants.replace(f"{python.site}/{name}", want)
    system.metadata(wants, plan, series, gone, tree)
    changed, extra = judge(tree, wants, _Confirm(source, plan))
    faults = [Finding(path=python.site, what=fault) for fault in series.faults]
    return Judged(
        config=tuple(configured.faults(contents.config, plan, base.config)),
        changed=(*faults, *changed),
        extra=tuple(extra),
        files=len(tree.entries),
        wheels=len(found),
        obsolete=tuple(sorted(obsolete)),
    )


def _patched_layer(plan: CellPlan) -> str:
    """The install layer that patches change."""
    return context.layers_of(plan.resolution)[-1].name


def _python(plan: CellPlan) -> Python:
    home = image_config.CUDA_HOME if plan.toolchain else None
    return Python(version=plan.cell.python, cuda_home=home)


def _add_base(wants: Wants, base: Layer) -> None:
    for path, entry in base.entries.items():
        if entry.kind == "folder":
            wants.folders.add(path)
        wants.add(path, Want(origin="the base", kind=entry.kind, entry=entry))


class _Confirm:
    """Asks a wheel for a file: RECORD of a few wheels is wrong about their own files."""

    def __init__(self, source: Wheels, plan: CellPlan) -> None:
        toolchain = plan.toolchain.wheels if plan.toolchain else ()
        self._wheels = {wheel.sha256: wheel for wheel in (*plan.resolution.wheels, *toolchain)}
        self._source, self._left = source, MOST_FILES

    def __call__(self, want: Want, entry: Entry) -> bool:
        if entry.size != want.size or entry.size > MOST_BYTES or not self._left:
            return False
        self._left -= 1
        return sha256(self._source.content(self._wheels[want.wheel], want.member)) == entry.sha256
