"""Writes the build contexts that Buildx reads: a folder for each cell, base and wheel."""

from __future__ import annotations

import filecmp
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from imagefactory.errors import SetupError
from imagefactory.locking import indexes, unpacker, wheelhouse
from imagefactory.locking.lock import Unpacker, Wheel
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

    def write_base(self, name: str, image: BaseImage) -> Path:
        """The context ``name`` for the shared stages of a base."""
        context = self.folder / name
        context.mkdir(parents=True, exist_ok=True)
        text = render.base_dockerfile(self.templates, image.base, image.reference)
        (context / "Dockerfile").write_text(text, encoding="utf-8")
        return context

    def write_builder(self, name: str, image: BaseImage) -> Path:
        """The context ``name`` for the builder, with the unpacker of its platform.

        Raises SetupError if the unpacker is not cached and no index has it.
        """
        context = self.write_base(name, image)
        uv, copy = unpacker.program(self.unpackers, image.platform, self.settings), context / "uv"
        if not copy.exists() or not filecmp.cmp(uv, copy):
            shutil.copy2(uv, copy)
        return context

    def write_cell(self, plan: CellPlan) -> Path:
        """The context of a cell, with the wheels in it that no index has.

        Raises SetupError for a wheel that was locked from a local folder and is now in no folder
        and on no index, or whose address has another file now.
        """
        context = self.folder / plan.cell.name
        write_files(context, plan.files)
        (context / "wheels").mkdir()
        not_local = []
        for wheel in plan.local_wheels:
            file = self._file_of(wheel)
            if file:
                link(file, context / "wheels" / wheel.filename)
            else:
                not_local.append(wheel)
        gone = indexes.missing(not_local, self.settings) if not_local else []
        if gone:
            raise SetupError(gone)
        return context

    def _file_of(self, wheel: Wheel) -> Path | None:
        if wheel.is_built or wheel.has_address:
            return wheelhouse.file_of(wheel, self.settings)
        return indexes.local(wheel, self.settings.find_links)


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write ``files`` (relative path -> content) to ``folder``, which holds nothing else then."""
    if folder.exists():
        shutil.rmtree(folder)
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def link(source: Path, target: Path) -> None:
    """Put a file into a build context, without a copy where the file system can."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
