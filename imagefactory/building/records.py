"""Which digests the builds of this machine gave, by build key.

An image with the labels of a cell and a digest that no build gave is foreign.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from imagefactory.system import files

#: Folder below the state folder.
FOLDER = "builds"
#: Of a manifest or index, and of a configuration, which is how some engines name an image.
_FIELDS = ("containerimage.digest", "containerimage.config.digest")


def of_bake(metadata: Path) -> dict[str, tuple[str, ...]]:
    """The digests of each target in the metadata file of a bake; none for what has no image."""
    try:
        rows: Mapping[str, Any] = json.loads(metadata.read_text(encoding="utf-8"))
        return {
            target: tuple(str(row[name]) for name in _FIELDS if name in row)
            for target, row in rows.items()
            if isinstance(row, dict)
        }
    except (OSError, ValueError, AttributeError):
        return {}


def add(folder: Path, build_key: str, digests: Iterable[str]) -> None:
    """Note that a build of ``build_key`` gave ``digests``."""
    new = dict.fromkeys([*read(folder, build_key), *digests])
    if not new:
        return
    folder.mkdir(parents=True, exist_ok=True)
    files.write_text(_path(folder, build_key), json.dumps(list(new), indent=1) + "\n")


def read(folder: Path, build_key: str) -> tuple[str, ...]:
    """The digests that builds of ``build_key`` gave here; empty if there was none."""
    try:
        rows = json.loads(_path(folder, build_key).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ()
    return tuple(map(str, rows)) if isinstance(rows, list) else ()


def _path(folder: Path, build_key: str) -> Path:
    safe = build_key if build_key.isalnum() else "unknown"
    return folder / f"{safe}.json"
