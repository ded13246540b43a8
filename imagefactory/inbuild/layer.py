"""Makes one install layer of an image. Standard library only: it runs in the builder.

    python -m factory.layer NAME

Installs the wheels of /list.txt for the image's platform, removes what is never used at run time
(trim.py), and sets the same date on every file. /out/root becomes the layer; /out/report.json
records its name and what was removed. /wheels, if mounted, contains wheels that no index has.

The environment defines what all layers of an image share: FACTORY_PYTHON (such as 3.13),
FACTORY_PLATFORM (as uv names it, such as aarch64-manylinux_2_39), and FACTORY_CUDA_HOME if the
image has compilers.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import trim
from .install import install

#: 1980-01-01, the earliest date that files in a wheel can have. With one date for all files, equal
#: content gives equal layers.
EPOCH = 315532800
#: An image's site-packages, relative to its root.
SITE = "opt/venv/lib/python{python}/site-packages"
_NOTE = re.compile(rb"^.*uv_cache\.json,.*\n?", re.MULTILINE)
LIST, WHEELS, OUT = Path("/list.txt"), Path("/wheels"), Path("/out")


@dataclass(frozen=True)
class Target:
    """What the wheels are installed for.

    Attributes:
        python: its version, such as 3.13.
        platform: as uv names it.
        cuda_home: where the image has compilers; None without any.
    """

    python: str
    platform: str
    cuda_home: str | None

    @property
    def site(self) -> str:
        """The image's site-packages, relative to its root."""
        return SITE.format(python=self.python)


def target_of(environ: Mapping[str, str]) -> Target:
    """The target that the environment defines."""
    return Target(
        environ["FACTORY_PYTHON"], environ["FACTORY_PLATFORM"], environ.get("FACTORY_CUDA_HOME")
    )


def options(root: Path, target: Target) -> list[str]:
    """uv's options to install wheels for ``target`` below ``root``."""
    return [
        *("--prefix", f"{root}/opt/venv"),
        *("--python-version", target.python, "--python-platform", target.platform),
    ]


def unpack(root: Path, target: Target) -> None:
    """Install the listed wheels below ``root``, without uv's notes about them."""
    mounted = WHEELS if WHEELS.is_dir() else None
    install(LIST, *options(root, target), mounted=mounted)
    forget_cache(root)


def forget_cache(root: Path) -> None:
    """Remove uv's notes of when it saw a local wheel: they differ from build to build."""
    for note in list(root.rglob("uv_cache.json")):
        note.unlink()
    for record in list(root.rglob("RECORD")):
        text = record.read_bytes()
        kept = _NOTE.sub(b"", text)
        if kept != text:
            record.write_bytes(kept)


def set_dates(root: Path) -> None:
    """Set the date of ``root`` and everything below it, including that of links themselves."""
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            os.utime(f"{folder}/{name}", (EPOCH, EPOCH), follow_symlinks=False)
    os.utime(root, (EPOCH, EPOCH))


def write_report(out: Path, report: Mapping[str, Any]) -> None:
    """Write the report that a later stage reads."""
    (out / "report.json").write_text(json.dumps(report) + "\n", encoding="utf-8")


def main(name: str, target: Target, *, out: Path = OUT) -> None:
    """Make the layer and report on it."""
    unpack(out / "root", target)
    dropped = trim.trim(out / "root" / target.site, target.cuda_home)
    set_dates(out / "root")
    write_report(out, {"layer": name, "dropped": dropped})
    for row in dropped:
        size = sum(size for _, size in row["files"])
        print(f"trim: {row['rule']}: {len(row['files'])} files, {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main(sys.argv[1], target_of(os.environ))
