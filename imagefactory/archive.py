"""Unpacks archives that programs of ours wrote: files and folders, nothing that leads out of the target."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path, PurePosixPath


def unpack(archive: tarfile.TarFile, folder: Path) -> None:
    """Every regular file of ``archive`` below ``folder``; links and devices are left out.

    By hand, for tarfile's own filters are younger than Debian 12's Python. Raises ValueError for a name that leads out.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for member in archive:
        name = PurePosixPath(member.name)
        if name.is_absolute() or ".." in name.parts:
            raise ValueError(f"{member.name} would be written outside of {folder}")
        content = archive.extractfile(member) if member.isreg() else None
        if content is not None:
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as file:
                shutil.copyfileobj(content, file)
