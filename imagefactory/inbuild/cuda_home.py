"""Turns a toolchain's wheels into one CUDA_HOME. Standard library only: it runs in the builder.

    python cuda_home.py UNPACKED TARGET INSIDE [RUNTIME...]

UNPACKED contains the toolchain's wheels; its ``nvidia/cu*`` becomes TARGET. Each RUNTIME is the
``nvidia/cu*`` of a layer with CUDA libraries of the image, all of which are at INSIDE in the image.
Headers and libraries that the toolchain lacks (cuBLAS, cuRAND, NVRTC: kernels compiled at run time
need them) become links to those, so that no file is in the image twice. A TARGET that exists gets
only the links that it lacks.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path


def main(unpacked: Path, target: Path, inside: Path, runtimes: Sequence[Path] = ()) -> int:
    """Create TARGET, add links and print their number; 1 if there is no nvcc."""
    if not target.exists():
        homes = sorted(path.parents[1] for path in unpacked.glob("nvidia/cu*/bin/nvcc"))
        if not homes:
            print(f"no nvcc below {unpacked}", file=sys.stderr)
            return 1
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(homes[0], target)
        (target / "lib64").symlink_to("lib")  # where nvcc 13 looks for its runtime
    made = 0
    for runtime in runtimes:
        made += link_missing(runtime / "include", target / "include", inside / "include")
        made += link_libraries(runtime / "lib", target / "lib", inside / "lib")
    print(f"{target}: linked {made} headers and libraries to {inside}")
    return 0


def link_missing(source: Path, target: Path, inside: Path) -> int:
    """Link the top-level entries of ``source`` that ``target`` lacks; returns their number."""
    existing = {path.name for path in target.glob("*")}  # includes links whose target is missing
    missing = sorted({path.name for path in source.glob("*")} - existing)
    for name in missing:
        (target / name).symlink_to(inside / name)
    return len(missing)


def link_libraries(source: Path, target: Path, inside: Path) -> int:
    """Link each shared library by its own name and by the ``.so`` name that linkers look for."""
    made = 0
    for path in sorted(source.glob("lib*.so*")):
        for name in (path.name, path.name.partition(".so")[0] + ".so"):
            if not (target / name).exists() and not (target / name).is_symlink():
                (target / name).symlink_to(inside / path.name)
                made += 1
    return made


if __name__ == "__main__":
    unpacked, target, inside, *runtimes = map(Path, sys.argv[1:])
    sys.exit(main(unpacked, target, inside, runtimes))
