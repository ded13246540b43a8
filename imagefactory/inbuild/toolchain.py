"""Makes the layer of compilers from a toolchain's wheels. Standard library only: it runs in the
builder.

    python -m factory.toolchain PLATFORM CUDA

Installs the wheels of /list.txt for PLATFORM (as uv names it) and turns them into one CUDA_HOME, at
FACTORY_CUDA_HOME in the image. Headers and libraries that it lacks become links to those in the
folder CUDA of site-packages (such as nvidia/cu13), which belt.py listed in /cuda. The wheels run
with any Python 3. They are kept apart from the image's packages because CUDA wheels share the
folder site-packages/nvidia, where different versions would make a toolkit that does not work.
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
    """Install and link; 1 if the wheels have no compiler."""
    home, inside = (target.cuda_home or "").strip("/"), Path("/", target.site, cuda)
    with tempfile.TemporaryDirectory() as unpacked:
        options = ("--target", unpacked, "--python-platform", platform)
        install(LIST, *options)
        code = cuda_home.main(Path(unpacked), out / "root" / home, inside, [names])
    if code == 0:
        set_dates(out / "root")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], target_of(os.environ)))
