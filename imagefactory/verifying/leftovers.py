"""What killed runs leave behind: containers, and temporary folders such as a model's."""

from __future__ import annotations

from pathlib import Path

from imagefactory.system import temporary, ui
from imagefactory.system.engine import Engine


def sweep(engine: Engine, cache: Path) -> None:
    """Remove what processes that have ended left behind; nothing of a process that runs."""
    containers, folders = engine.orphans(), temporary.orphans(cache)
    for container in containers:
        engine.remove_container(container)
    temporary.remove(folders)
    if containers or folders:
        ui.say(
            f"removed what an earlier run left behind: {len(containers)} containers, "
            f"{len(folders)} temporary folders"
        )
