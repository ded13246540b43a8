"""Target platforms as installers name them, and the wheel tags that they accept. Pure."""

from __future__ import annotations

from functools import cache

from packaging.tags import Tag, compatible_tags, cpython_tags

from imagefactory.matrix.cell import Request
from imagefactory.system.platforms import Platform

#: The newest manylinux that uv 0.13 knows; a base with a newer glibc runs those wheels too.
NEWEST_MANYLINUX = 40
#: NVIDIA's compiler wheels run on any Python 3, and on a glibc older than that of any base.
COMPILER_PYTHON, COMPILER_GLIBC = "3.11", "2.28"
#: The project whose wheels can be built from source.
BUILT = "vllm"


def uv_platform(platform: Platform, glibc: str) -> str:
    """uv's name of a target platform with its base's glibc, such as ``aarch64-manylinux_2_39``."""
    return f"{platform.machine}-manylinux_2_{_minor(glibc)}"


def _minor(glibc: str) -> int:
    return min(int(glibc.partition(".")[2]), NEWEST_MANYLINUX)


def target_tags(request: Request) -> tuple[Tag, ...]:
    """The wheel tags that the target accepts, best first."""
    return _tags(request.platform.machine, request.python, _minor(request.glibc))


@cache
def _tags(arch: str, python: str, glibc: int) -> tuple[Tag, ...]:
    version = tuple(int(part) for part in python.split("."))
    # PEP 600: manylinux1 is glibc 2.5; the other architectures start at 2.17
    oldest, legacy = 17, ["manylinux2014"]
    if arch == "x86_64":
        oldest, legacy = 5, ["manylinux2014", "manylinux2010", "manylinux1"]
    minors = range(glibc, oldest - 1, -1)
    platforms = [f"manylinux_2_{minor}_{arch}" for minor in minors]
    platforms += [f"{name}_{arch}" for name in (*legacy, "linux")]
    interpreter = f"cp{version[0]}{version[1]}"
    return (
        *cpython_tags(version, platforms=platforms),
        *compatible_tags(version, interpreter, platforms),
    )
