"""Packs folders into reproducible tar archives, and unpacks archives safely."""

from __future__ import annotations

import hashlib
import shutil
import tarfile
from pathlib import Path, PurePosixPath

from imagefactory.system import temporary

#: 1980-01-01, the date of every file in the archives that we write.
EPOCH = 315532800


def unpack(archive: tarfile.TarFile, folder: Path) -> None:
    """Write the regular files of ``archive`` below ``folder``; skip links and devices.

    tarfile's own filters are newer than Debian 12's Python. Raises ValueError for a name that
    leads out of ``folder``.
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


def pack(folder: Path, target: Path) -> None:
    """Pack ``folder`` into the tar file ``target``, below ``src/``; equal trees give equal bytes.

    Names are sorted, dates and owners are fixed, and only the executable bit of a mode is kept;
    git's own files are left out.
    """
    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder)
            if ".git" in name.parts or (path.is_dir() and not path.is_symlink()):
                continue
            member = tarfile.TarInfo(f"src/{name.as_posix()}")
            executable = path.stat(follow_symlinks=False).st_mode & 0o100
            member.mtime, member.mode = EPOCH, 0o755 if executable else 0o644
            if path.is_symlink():
                member.type, member.linkname = tarfile.SYMTYPE, str(path.readlink())
                archive.addfile(member)
            elif path.is_file():
                member.size = path.stat().st_size
                with path.open("rb") as file:
                    archive.addfile(member, file)


def sha_of_folder(folder: Path) -> str:
    """SHA-256 of the archive that ``pack`` makes from ``folder``, in hex."""
    with temporary.folder(prefix="imagefactory-archive-") as parent:
        pack(folder, parent / "tar")
        with (parent / "tar").open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
