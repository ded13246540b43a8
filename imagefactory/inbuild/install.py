"""Installs locked wheels with uv. Standard library only: it runs in the builder.

    python -m factory.install LIST [UV OPTION...]

Every line of LIST identifies one wheel by its hash; archives.py has it or downloads it. uv unpacks
exactly those wheels, each once: it unpacks into a cache of its own, and the target gets links to
the same files before that cache is removed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from . import archives

PYTHON = "/opt/venv/bin/python"
#: No resolver, no compiler and no network; the hash identifies the wheel.
LOCKED = (
    *("--only-binary", ":all:", "--no-deps", "--require-hashes"),
    *("--no-index", "--link-mode", "hardlink"),
)


def command(wheels: Path, found: Path, unpacked: Path, *options: str) -> list[str]:
    """uv's command line to install the list ``wheels``.

    ``found`` is the folder of their archives, ``unpacked`` where uv unpacks them.
    """
    argv = ["uv", "pip", "install", "--python", PYTHON, *LOCKED, *options]
    return [*argv, "--find-links", str(found), "--cache-dir", str(unpacked), "-r", str(wheels)]


def install(wheels: Path, *options: str, mounted: Path | None = None) -> None:
    """Collect the archives and run uv. Raises SystemExit with its exit code if it fails.

    ``mounted`` may have wheels that no index has.
    """
    paths = archives.collect(wheels, mounted)
    # links need one file system: in a build step, everything but mounts is
    with tempfile.TemporaryDirectory() as name:
        found = Path(name, "wheels")
        found.mkdir()
        for path in paths:
            (found / path.name).symlink_to(path)
        done = subprocess.run(
            command(wheels, found, Path(name, "unpacked"), *options),
            env={**os.environ, "UV_INDEX": "", "UV_DEFAULT_INDEX": ""},
            check=False,
        )
    if done.returncode:
        sys.exit(done.returncode)


if __name__ == "__main__":
    install(Path(sys.argv[1]), *sys.argv[2:])
