"""What the steps of a build have in common. Standard library only: it runs in the builder."""

from __future__ import annotations

import os
from pathlib import Path

#: 1980-01-01, the earliest date that files in a wheel can have. With one date for all files, equal
#: content gives equal layers.
EPOCH = 315532800
#: An image's Python environment and its site-packages, relative to its root.
VENV = "opt/venv"
SITE = f"{VENV}/lib/python{{python}}/site-packages"
OUT = Path("/out")


def set_dates(root: Path) -> None:
    """Set the date of ``root`` and everything below it, including that of links themselves."""
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            os.utime(f"{folder}/{name}", (EPOCH, EPOCH), follow_symlinks=False)
    os.utime(root, (EPOCH, EPOCH))
