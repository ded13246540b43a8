"""Rebuilds an image from the same inputs, and compares the result with the existing image."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace

from imagefactory.building import building
from imagefactory.building.bakefile import BakeOptions
from imagefactory.building.contexts import Contexts
from imagefactory.building.sites import Site
from imagefactory.errors import CheckFailedError, fail
from imagefactory.inspecting import filetree
from imagefactory.inspecting.filetree import FileChange
from imagefactory.matrix.cell import Cell
from imagefactory.planning.cell_plan import LABEL, CellPlan
from imagefactory.planning.planning import Bases
from imagefactory.system import ui
from imagefactory.system.engine import Engine, ImageInfo

REPOSITORY = "imagefactory/rebuild"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """The result of a rebuild.

    Attributes:
        tag: the image that was rebuilt.
        old: its digest.
        new: the digest of the rebuilt image.
        layers: the index (0 is the lowest) and both digests of each layer that differs; a digest
            is empty if one image has no such layer.
        files: the files that differ; None if they were not compared.
        fingerprints: of both images' contents without dates, if the files were compared.
    """

    tag: str
    old: str
    new: str
    layers: tuple[tuple[int, str, str], ...]
    files: tuple[FileChange, ...] | None
    fingerprints: tuple[str, str] | None

    @property
    def same(self) -> bool:
        """Whether both images have the same digest."""
        return self.old == self.new

    def as_dict(self) -> dict[str, object]:
        """The comparison as plain JSON values."""
        return {**asdict(self), "same": self.same}


def cell_of(image: ImageInfo, cells: Sequence[Cell]) -> Cell:
    """The cell that ``image`` was built for.

    Raises CheckFailedError if imagefactory did not build it, or its cell no longer exists.
    """
    name = image.labels.get(f"{LABEL}.cell")
    found = next((cell for cell in cells if cell.name == name), None)
    if found:
        return found
    if name:
        what = f"it was built for the cell {name}, which is not in the matrix"
        fix = "check out the revision that it was built from"
    else:
        what, fix = "it has no build key", "name an image that imagefactory built"
    raise fail(CheckFailedError, "rebuild-no-cell", what, where=image.ref, fix=fix)


def check_inputs(image: ImageInfo, plan: CellPlan) -> None:
    """Raise CheckFailedError if ``image`` was built from other inputs than ``plan``."""
    key = image.labels.get(f"{LABEL}.build-key", "")
    if plan.build_key != key:
        what = f"its inputs have changed: build key was {key[:12]}, is {plan.build_key[:12]}"
        fix = "check out the revision that it was built from; or build, then use imagefactory diff"
        raise fail(CheckFailedError, "rebuild-other-inputs", what, where=image.ref, fix=fix)


@dataclass(frozen=True, slots=True, kw_only=True)
class Baking:
    """What a rebuild is baked from; ``with_base`` also runs the steps of the base again."""

    contexts: Contexts
    bases: Bases
    with_base: bool


def rebuild(
    engine: Engine, image: ImageInfo, plan: CellPlan, baking: Baking, *, files: bool
) -> Rebuilt:
    """Build ``plan`` without build cache, and compare the result with ``image``.

    ``files`` compares file by file if the digests differ. Raises CheckFailedError if the build
    fails. The rebuilt image is removed in any case.
    """
    tag = f"{REPOSITORY}:{plan.build_key[:12]}"
    with _built(engine, plan, tag, baking) as made:
        pairs = itertools.zip_longest(image.layers, made.layers, fillvalue="")
        changes, fingerprints = (
            _files(engine, image.ref, tag)
            if files and made.digest != image.digest
            else (None, None)
        )
        return Rebuilt(
            tag=image.ref,
            old=image.digest,
            new=made.digest,
            layers=tuple((index, old, new) for index, (old, new) in enumerate(pairs) if old != new),
            files=changes,
            fingerprints=fingerprints,
        )


@contextmanager
def _built(engine: Engine, plan: CellPlan, tag: str, baking: Baking) -> Iterator[ImageInfo]:
    again = replace(plan, cell=replace(plan.cell, tags=(tag,)))
    site, logs = Site(engine=engine), baking.contexts.folder / "logs"
    again_from = baking.contexts.folder / "layers"
    options = BakeOptions(uncached="all" if baking.with_base else "cells", layers=again_from)
    try:
        (result,) = building.build([again], baking.bases, site, baking.contexts, options, logs)
        if not result.ok:
            raise CheckFailedError(result.problem)
        yield engine.inspect_image(tag)
    finally:
        engine.untag(tag)
        shutil.rmtree(again_from, ignore_errors=True)


def _files(engine: Engine, old: str, new: str) -> tuple[tuple[FileChange, ...], tuple[str, str]]:
    before, after = trees(engine, (old, new))
    fingerprints = filetree.fingerprint(before), filetree.fingerprint(after)
    return tuple(filetree.compare(before, after)), fingerprints


def trees(engine: Engine, refs: Sequence[str]) -> list[dict[str, filetree.Entry]]:
    """Every file of each image."""
    found = []
    for ref in refs:
        with ui.step(f"reading the files of {ref}"), engine.export(ref) as stream:
            found.append(filetree.read(stream))
    return found
