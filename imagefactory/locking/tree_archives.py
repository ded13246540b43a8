"""Archives of git trees, as they are locked and kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from imagefactory.locking import wheelhouse
from imagefactory.locking.locked_sources import LockedSource
from imagefactory.settings import Settings
from imagefactory.system import temporary


def lock(
    name: str,
    version: str,
    *,
    filename: str,
    address: str,
    pack: Callable[[Path], None],
    settings: Settings,
) -> LockedSource:
    """Keep the archive that ``pack`` writes, and return it as it is locked.

    ``address`` says where the tree is: a repository's URL and the commits in it.
    """
    with temporary.folder(prefix="imagefactory-source-") as folder:
        part = folder / filename
        pack(part)
        sha = wheelhouse.sha_of(part)
        wheelhouse.store(wheelhouse.path_of(sha, filename, settings), part)
        size = part.stat().st_size
    return LockedSource(
        name=name,
        version=version,
        filename=filename,
        sha256=sha,
        size=size,
        url=f"git+{address}",
    )
