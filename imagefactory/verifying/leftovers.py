"""What killed verifications leave behind: containers and the models that they serve."""

from __future__ import annotations

import shutil
from pathlib import Path

from imagefactory.system import ui
from imagefactory.system.engine import Engine, owner

#: How the names of temporary folders start; their owner and something random follow.
MODEL = "smoke-model-"


def folders(cache: Path) -> list[Path]:
    """Temporary folders in ``cache`` of processes that have ended."""
    found = sorted(cache.glob(f"{MODEL}*"))
    return [path for path in found if path.is_dir() and _is_orphan(path)]


def sweep(engine: Engine, cache: Path) -> None:
    """Remove what processes that have ended left behind; nothing of a process that runs."""
    containers, models = engine.orphans(), folders(cache)
    for container in containers:
        engine.remove_container(container)
    for folder in models:
        shutil.rmtree(folder, ignore_errors=True)
    if containers or models:
        ui.say(
            f"removed what an earlier run left behind: {len(containers)} containers, "
            f"{len(models)} temporary folders"
        )


def _is_orphan(folder: Path) -> bool:
    return owner.gone(folder.name.removeprefix(MODEL).rpartition("-")[0])
