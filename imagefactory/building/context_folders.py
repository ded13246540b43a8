"""The folders of build contexts: one for each project, so that none writes into another's."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from imagefactory.settings import Settings

#: File in such a folder with the path of the project that it belongs to.
OWNER = "project"


def root(settings: Settings) -> Path:
    """The folder of all of them."""
    return settings.cache / "build"


def of(project: Path, settings: Settings) -> Path:
    """The folder of a project's contexts; it need not exist."""
    identity = hashlib.sha256(str(project).encode("utf-8", "surrogateescape")).hexdigest()
    return root(settings) / f"{project.name or 'root'}-{identity[:8]}"


def claim(project: Path, settings: Settings) -> Path:
    """The folder of a project's contexts; it exists then and names its project."""
    folder = of(project, settings)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / OWNER).write_text(str(project), encoding="utf-8", errors="surrogateescape")
    return folder


def orphans(settings: Settings) -> Iterator[Path]:
    """Folders whose project is gone, or that name none, as those of earlier versions."""
    for folder in sorted(path for path in root(settings).glob("*") if path.is_dir()):
        try:
            owner = (folder / OWNER).read_text(encoding="utf-8", errors="surrogateescape")
        except OSError:
            owner = ""
        if not owner or not Path(owner).is_dir():
            yield folder
