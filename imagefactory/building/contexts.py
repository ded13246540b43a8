"""Writes the build contexts that Buildx reads: a folder for each cell, base and wheel."""

from __future__ import annotations

import filecmp
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from imagefactory.building.stack.stack import Stack
from imagefactory.locking import unpacker
from imagefactory.locking.lock import Unpacker
from imagefactory.planning import render
from imagefactory.planning.cell_plan import BaseImage, CellPlan
from imagefactory.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Contexts:
    """Where build contexts are written, and what they are written from.

    Attributes:
        folder: holds a folder for each context, and the bake files.
        templates: folders of Dockerfile templates, searched in this order.
        unpackers: the uv that unpacks wheels in the builder, for each build platform.
        settings: indexes, wheel folders and the CA bundle for steps that download.
    """

    folder: Path
    templates: tuple[Path, ...]
    unpackers: tuple[Unpacker, ...]
    settings: Settings

    def write_builder(self, name: str, image: BaseImage) -> Path:
        """The context ``name`` for the builder, with the unpacker of its platform.

        Raises SetupError if the unpacker is not cached and no index has it.
        """
        context = self.folder / name
        context.mkdir(parents=True, exist_ok=True)
        text = render.base_dockerfile(self.templates, image.locked, image.reference)
        (context / "Dockerfile").write_text(text, encoding="utf-8")
        uv, copy = unpacker.program(self.unpackers, image.platform, self.settings), context / "uv"
        if not copy.exists() or not filecmp.cmp(uv, copy):
            shutil.copy2(uv, copy)
        return context

    def write_cell(self, plan: CellPlan, stack: Stack) -> Path:
        """The context of a cell, with the report on the layers in ``stack``."""
        context = self.folder / plan.cell.name
        report = json.dumps(stack.report).encode()
        write_files(context, {**plan.files, "image/layers.json": report})
        return context


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write ``files`` (relative path -> content) to ``folder``, which holds nothing else then."""
    if folder.exists():
        shutil.rmtree(folder)
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
