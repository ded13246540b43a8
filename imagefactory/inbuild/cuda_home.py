"""Makes a toolchain's wheels into one CUDA_HOME. Standard library only: it runs in the builder.

    python cuda_home.py UNPACKED TARGET INSIDE [RUNTIME...]

UNPACKED holds the toolchain's wheels; its ``nvidia/cu*`` becomes TARGET. Each RUNTIME is the
``nvidia/cu*`` of a layer with the image's own CUDA libraries, all of which are at INSIDE in the
image: headers and libraries that the toolchain lacks (cuBLAS, cuRAND, NVRTC, which kernels that are
compiled at run time include and link) become links to those: nothing is there twice. A TARGET that
is there already only gets the links that it lacks.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path


def main(unpacked: Path, target: Path, inside: Path, runtimes: Sequence[Path] = ()) -> int:
    """Move, link, report; exit 1 if there is no nvcc."""
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
    print(f"{target}: {made} headers and libraries are links to {inside}")
    return 0


def link_missing(source: Path, target: Path, inside: Path) -> int:
    """Link what ``source`` has at its top and ``target`` lacks; folders are linked whole."""
    there = {path.name for path in target.glob("*")}  # links, too, that lead nowhere yet
    missing = sorted({path.name for path in source.glob("*")} - there)
    for name in missing:
        (target / name).symlink_to(inside / name)
    return len(missing)


def link_libraries(source: Path, target: Path, inside: Path) -> int:
    """Link every shared library by its own name and by the plain ``.so`` name that linkers ask
    for.
    """
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
