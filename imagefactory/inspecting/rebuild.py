"""The rebuild station: an image is made once more from the same inputs.

And held against the one that is there.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace

from imagefactory.building import building
from imagefactory.errors import CheckFailedError, fail
from imagefactory.inspecting import filetree
from imagefactory.inspecting.filetree import FileChange
from imagefactory.planning.cell_plan import LABEL, CellPlan
from imagefactory.system import ui
from imagefactory.system.engine import Engine, ImageInfo
from imagefactory.workspace import Workspace

REPOSITORY = "imagefactory/rebuild"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """How a rebuild compares.

    Attributes:
        tag: the image that was built again.
        old: its digest.
        new: the digest of what was made this time.
        layers: of each layer that differs the place from the bottom (0 is the first) and both
            digests, empty for none.
        files: what differs file by file; None if nobody asked, or there was nothing to look for.
        fingerprints: of the contents of both without their dates, if the files were compared.
    """

    tag: str
    old: str
    new: str
    layers: tuple[tuple[int, str, str], ...]
    files: tuple[FileChange, ...] | None
    fingerprints: tuple[str, str] | None

    @property
    def same(self) -> bool:
        """Whether both have one digest."""
        return self.old == self.new

    def as_dict(self) -> dict[str, object]:
        """The comparison as plain JSON values."""
        return {**asdict(self), "same": self.same}


def plan_of(workspace: Workspace, image: ImageInfo, engine: Engine) -> CellPlan:
    """The plan of the cell that made ``image``.

    Raises CheckFailedError if imagefactory did not make it, no cell makes it any more, or from
    other inputs.
    """
    name, key = image.labels.get(f"{LABEL}.cell"), image.labels.get(f"{LABEL}.build-key", "")
    cells = [cell for cell in workspace.cells([]) if cell.name == name]
    if not cells:
        what = (
            f"{image.ref} is of the cell {name}, which the matrix does not have"
            if name
            else "it has no build key"
        )
        fix = (
            "check out the revision that made it"
            if name
            else "name an image that imagefactory made"
        )
        raise fail(CheckFailedError, "rebuild-no-cell", what, where=image.ref, fix=fix)
    (plan,) = workspace.plans(cells, workspace.look_everywhere(cells, engine))
    if plan.build_key != key:
        what = f"its inputs have changed: build key was {key[:12]}, is {plan.build_key[:12]}"
        fix = "check out the revision that made it; or build, and compare with imagefactory diff"
        raise fail(CheckFailedError, "rebuild-other-inputs", what, where=image.ref, fix=fix)
    return plan


def rebuild(
    workspace: Workspace,
    engine: Engine,
    image: ImageInfo,
    plan: CellPlan,
    *,
    bases: bool,
    files: bool,
) -> Rebuilt:
    """Build ``plan`` without any cache of its own steps, nor of the base's with ``bases``, and
    compare.

    Raises CheckFailedError if the build fails; what it made is taken away again in any case.
    """
    tag = f"{REPOSITORY}:{plan.build_key[:12]}"
    with _built(workspace, engine, plan, tag, bases=bases) as made:
        pairs = itertools.zip_longest(image.layers, made.layers, fillvalue="")
        compared = (
            (None, None)
            if made.digest == image.digest or not files
            else _files(engine, image.ref, tag)
        )
        return Rebuilt(
            tag=image.ref,
            old=image.digest,
            new=made.digest,
            layers=tuple((place, old, new) for place, (old, new) in enumerate(pairs) if old != new),
            files=compared[0],
            fingerprints=compared[1],
        )


@contextmanager
def _built(
    workspace: Workspace, engine: Engine, plan: CellPlan, tag: str, *, bases: bool
) -> Iterator[ImageInfo]:
    again = replace(plan, cell=replace(plan.cell, tags=(tag,)))
    folder = workspace.settings.cache / "rebuild"
    found = workspace.ensure([plan.cell], engine)
    bakefile = workspace.write_bake(
        folder, [again], found, engine.platform, uncached="all" if bases else "cells"
    )
    try:
        (result,) = building.bake(engine, [again], bakefile, folder / "logs")
        if not result.ok:
            fix = f"reproduce: {result.reproduce}"
            raise fail(
                CheckFailedError,
                "build-failed",
                f"{result.error} (log: {result.log})",
                where=tag,
                fix=fix,
            )
        yield engine.inspect_image(tag)
    finally:
        engine.untag(tag)


def _files(engine: Engine, old: str, new: str) -> tuple[tuple[FileChange, ...], tuple[str, str]]:
    before, after = trees(engine, (old, new))
    return tuple(filetree.compare(before, after)), (
        filetree.fingerprint(before),
        filetree.fingerprint(after),
    )


def trees(engine: Engine, refs: Sequence[str]) -> list[dict[str, filetree.Entry]]:
    """Every file of each image."""
    found = []
    for ref in refs:
        with ui.step(f"reading the files of {ref}"), engine.export(ref) as stream:
            found.append(filetree.read(stream))
    return found
