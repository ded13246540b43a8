"""The locations of a user's files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from imagefactory import stock
from imagefactory.building import context_folders
from imagefactory.settings import Settings, from_environment
from imagefactory.system import keyring


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """A matrix file, the files next to it, and the settings of this machine.

    Attributes:
        matrix: the matrix file.
        project: the folder that contains it.
        settings: the machine's folders, indexes and CA bundle.
    """

    matrix: Path
    project: Path
    settings: Settings

    @property
    def lock(self) -> Path:
        """The lock file, ``wheels.lock``."""
        return self.project / "wheels.lock"

    @property
    def own_patches(self) -> Path:
        """Folder of the project's own patches, which are in ``PROJECT/NAME`` below it."""
        return self.project / "patches"

    @property
    def patches(self) -> tuple[Path, ...]:
        """Folders of patches: an own one replaces the stock one of the same name."""
        return stock.search_path(self.project, "patches")

    @property
    def recipes(self) -> tuple[Path, ...]:
        """Folders of recipes: an own one replaces the stock one of the same name."""
        return stock.search_path(self.project, "recipes")

    @property
    def templates(self) -> tuple[Path, ...]:
        """Folders of Dockerfile templates and the entrypoint, searched in this order."""
        return stock.search_path(self.project, "templates")

    @property
    def contexts(self) -> Path:
        """Folder of the project's build contexts and bake files."""
        return context_folders.of(self.project, self.settings)


def find(matrix: Path, environ: Mapping[str, str]) -> Workspace:
    """The workspace of a matrix file; it need not exist yet."""
    project = Path(os.path.realpath(matrix)).parent  # which, unlike resolve(), accepts loops
    settings = from_environment(environ)
    if keyring.is_wanted(environ):
        settings = replace(settings, keyring=keyring.find)
    return Workspace(matrix=matrix, project=project, settings=settings)
