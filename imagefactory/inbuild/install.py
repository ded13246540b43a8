"""Installs locked wheels with uv. Standard library only: it runs in the builder.

    python install.py LIST [UV OPTION...]

Every line of LIST identifies one wheel by its hash. uv unpacks exactly those wheels.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PYTHON = "/opt/venv/bin/python"
#: No resolver and no compiler run; the hash identifies the wheel, whichever index has it.
LOCKED = (
    *("--only-binary", ":all:", "--no-deps", "--require-hashes"),
    *("--index-strategy", "unsafe-best-match"),
)
#: Certificates for downloads: an optional secret of the build.
CA = Path("/run/secrets/ca")


def command(wheels: Path, *options: str) -> list[str]:
    """uv's command line."""
    argv = ["uv", "pip", "install", "--python", PYTHON, *LOCKED, *options]
    return [*argv, "-r", str(wheels)]


def certificates(ca: Path = CA) -> dict[str, str]:
    """The environment variable that makes uv trust ``ca``; none if that is empty or absent."""
    return {"SSL_CERT_FILE": str(ca)} if ca.is_file() and ca.stat().st_size else {}


def install(wheels: Path, *options: str) -> None:
    """Run uv. Raises SystemExit with its exit code if it fails."""
    argv = command(wheels, *options)
    done = subprocess.run(argv, env={**os.environ, **certificates()}, check=False)
    if done.returncode:
        sys.exit(done.returncode)


if __name__ == "__main__":
    install(Path(sys.argv[1]), *sys.argv[2:])
