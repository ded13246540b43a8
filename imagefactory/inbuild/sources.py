"""Unpacks the archives that a wheel is built from. Standard library only: it runs in the builder.

    python sources.py LIST FILES SOURCE OTHERS

LIST is a JSON file: name -> ``file`` below FILES, and the folder ``inside`` it to use. The one with
an empty name is the project itself and becomes SOURCE; any other becomes OTHERS/name.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path


def unpack(archive: Path, inside: str, target: Path) -> None:
    """Unpack the folder ``inside`` of ``archive`` as ``target``.

    If ``inside`` is empty, it is the only folder at the top, else all of the archive. Raises
    SystemExit if there is no such folder.
    """
    with tempfile.TemporaryDirectory(dir=target.parent) as name:
        # a wheel is a zip file with another suffix
        shutil.unpack_archive(archive, name, "zip" if zipfile.is_zipfile(archive) else None)
        folders = [path for path in Path(name).iterdir() if path.is_dir()]
        found = Path(name, inside) if inside else folders[0] if len(folders) == 1 else Path(name)
        if not found.is_dir():
            sys.exit(f"E: {archive.name} contains no folder {inside}")
        shutil.move(found, target)


def main(listing: Path, files: Path, source: Path, others: Path) -> int:
    """Unpack every archive in ``listing``."""
    others.mkdir(parents=True)
    for name, row in json.loads(listing.read_text(encoding="utf-8")).items():
        unpack(files / row["file"], row["inside"], others / name if name else source)
    return 0


if __name__ == "__main__":
    sys.exit(main(*(Path(argument) for argument in sys.argv[1:5])))
