"""Libraries that come with no wheel: those of the base, of the driver, and of Python itself."""

from __future__ import annotations

import re
from collections.abc import Iterator

from imagefactory.locking.lock import LockedBase

#: What every base has; the GCC runtime is among it because torch needs it.
_GLIBC = re.compile(
    r"(?:lib(?:c|m|dl|rt|util|pthread|resolv|gcc_s|stdc\+\+)|ld-linux-[a-z0-9_-]+)\.so\.\d+"
)
#: What the NVIDIA container runtime adds to a container, from the host's driver.
_DRIVER = re.compile(r"lib(?:cuda|nvidia-ml|nvidia-ptxjitcompiler|nvcuvid|nvidia-encode)\.so\.1")
#: Symbols without a version that are looked for in wheels: those of C++, without its own library
#: (which every base has), and the C functions of torch and CUDA. Others are of libc or Python.
_MANGLED = re.compile(
    r"_Z(?!(?:T[ISV]|GV)?N?[KVRO]*(?:S[tsaiod]|10__cxxabiv1|9__gnu_cxx)|[nd][wla])"
)
_TORCH = re.compile(r"(?:aoti_|torch_|THP)\w+")
#: Those of libcuda.so.1 are like cuLaunchKernel, and are not among them.
_CUDA = re.compile(
    r"_*(cublasLt|cublas|cudnn|cusparseLt|cusparse|cufft|curand|cusolver|nccl|nvrtc|nvJitLink|cuda)"
    r"[A-Z]\w+"
)
#: Debian packages whose names do not follow from the name of the library.
_PACKAGES = {"libz.so.1": "zlib1g", "libcrypto.so.3": "libssl3", "libcrypt.so.1": "libcrypt1"}
_PARTS = re.compile(r"(?P<name>lib[^/]+?)\.so\.(?P<version>\d+).*")
#: The newest GLIBCXX and CXXABI of libstdc++, by the version of GCC that it belongs to.
_LIBSTDCXX = {
    11: ((3, 4, 29), (1, 3, 13)),
    12: ((3, 4, 30), (1, 3, 13)),
    13: ((3, 4, 32), (1, 3, 14)),
    14: ((3, 4, 33), (1, 3, 15)),
    15: ((3, 4, 34), (1, 3, 16)),
}


def is_of_driver(name: str) -> bool:
    """Whether a library comes from the driver of the machine that runs the image."""
    return _DRIVER.fullmatch(name) is not None


def is_of_base(name: str, base: LockedBase | None) -> bool | None:
    """Whether ``base`` has a library; None if its packages are not known."""
    if _GLIBC.fullmatch(name):
        return True
    if base is None or base.suite is None:
        return None
    installed = {deb.name for deb in base.debs}
    return any(package in installed for package in _packages(name))


def _packages(name: str) -> Iterator[str]:
    """The Debian packages that may have a library: ``libnuma1`` for ``libnuma.so.1``."""
    found = _PARTS.fullmatch(name)
    if found is None:
        return
    stem = found["name"].lower().replace("_", "-")
    joint = "-" if stem[-1].isdigit() else ""
    package = _PACKAGES.get(name, f"{stem}{joint}{found['version']}")
    yield from (package, f"{package}t64")
    if stem.startswith("libpython"):
        yield stem


def is_judged(symbol: str) -> bool:
    """Whether a symbol without a version is looked for in wheels."""
    return any(pattern.match(symbol) for pattern in (_MANGLED, _TORCH, _CUDA))


def cuda_library(symbol: str) -> str | None:
    """The CUDA library that has a symbol, such as ``libcublasLt``; None for other symbols."""
    found = _CUDA.match(symbol)
    return {"cuda": "libcudart"}.get(found[1], f"lib{found[1]}") if found else None


def newest(family: str, glibc: str, base: LockedBase | None) -> tuple[int, ...] | None:
    """The newest version of ``GLIBC``, ``GLIBCXX`` or ``CXXABI`` in a base; None if not known."""
    if family == "GLIBC":
        return parsed(glibc)
    debs = base.debs if base else ()
    version = next((deb.version for deb in debs if deb.name == "libstdc++6"), "")
    pair = _LIBSTDCXX.get(int(re.match(r"\d*", version)[0] or 0))  # type: ignore[index]
    return pair[family == "CXXABI"] if pair else None


def parsed(version: str) -> tuple[int, ...]:
    """A version as numbers."""
    return tuple(int(part) for part in version.split("."))
