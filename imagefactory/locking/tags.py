"""What installers call the machines that images are for, and which wheels those machines take.

Pure.
"""

from __future__ import annotations

from packaging.tags import Tag, compatible_tags, cpython_tags

from imagefactory.matrix.cell import Request
from imagefactory.system.platforms import Platform

#: The newest manylinux that uv 0.13 has a name for; a base with a newer glibc runs those wheels
#: too.
NEWEST_MANYLINUX = 40
#: NVIDIA's compiler wheels are for any Python 3 and for a glibc older than any that the bases have.
COMPILER_PYTHON, COMPILER_GLIBC = "3.11", "2.28"
#: The project whose wheels can be made from its sources.
BUILT = "vllm"


def uv_platform(platform: Platform, glibc: str) -> str:
    """uv's name of a target, such as ``aarch64-manylinux_2_39``.

    The base's glibc is part of what may be installed.
    """
    return f"{platform.machine}-manylinux_2_{_minor(glibc)}"


def _minor(glibc: str) -> int:
    return min(int(glibc.partition(".")[2]), NEWEST_MANYLINUX)


def target_tags(request: Request) -> list[Tag]:
    """The wheel tags that the target takes, best first."""
    arch, version = request.platform.machine, tuple(int(part) for part in request.python.split("."))
    oldest = (
        5 if arch == "x86_64" else 17
    )  # PEP 600: manylinux1 is glibc 2.5; other architectures began with 2.17
    platforms = [
        f"manylinux_2_{minor}_{arch}" for minor in range(_minor(request.glibc), oldest - 1, -1)
    ]
    legacy = (
        ("manylinux2014", "manylinux2010", "manylinux1") if arch == "x86_64" else ("manylinux2014",)
    )
    platforms += [f"{name}_{arch}" for name in (*legacy, "linux")]
    interpreter = f"cp{version[0]}{version[1]}"
    return [
        *cpython_tags(version, platforms=platforms),
        *compatible_tags(version, interpreter, platforms),
    ]
