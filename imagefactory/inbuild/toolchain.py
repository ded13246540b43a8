"""Makes the layer of compilers from a toolchain's wheels. Standard library only: it runs in the
builder.

    python -m factory.toolchain PLATFORM CUDA

Installs the wheels of /list.txt for PLATFORM, uv's name of it, and makes them the image's
CUDA_HOME, FACTORY_CUDA_HOME. What the toolchain lacks and the folder CUDA of site-packages (such as
nvidia/cu13) has, by belt.py's list in /cuda, become links to it. The wheels are for any Python 3,
and stay apart from the image's packages: several CUDA wheels share site-packages/nvidia, and those
of different versions in one folder are a toolkit that refuses to work.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from . import cuda_home
from .install import install
from .layer import LIST, OUT, Target, set_dates, target_of

NAMES = Path("/cuda")


def main(platform: str, cuda: str, target: Target, *, names: Path = NAMES, out: Path = OUT) -> int:
    """Install, link and date; 1 if the wheels hold no compiler."""
    home, inside = (target.cuda_home or "").strip("/"), Path("/", target.site, cuda)
    with tempfile.TemporaryDirectory() as unpacked:
        options = ("--target", unpacked, "--python-platform", platform, "--link-mode", "copy")
        install(LIST, *options)
        code = cuda_home.main(Path(unpacked), out / "root" / home, inside, [names])
    if code == 0:
        set_dates(out / "root")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], target_of(os.environ)))
