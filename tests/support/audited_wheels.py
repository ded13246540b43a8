"""Wheels that belong together, and a cell that has them, for tests of audits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from imagefactory.auditing import auditing
from imagefactory.auditing.auditing import Audit
from imagefactory.auditing.reading import Reader
from imagefactory.auditing.subject import Subject
from imagefactory.locking.lock import LockedBase, Resolution, TorchBuild
from imagefactory.settings import Settings
from imagefactory.system.platforms import Platform
from support.elf_files import Elf, wheel
from support.machine import settings
from support.plans import deb

TENSOR, COUT = "_ZN2at6Tensor3addEv", "_ZSt4coutv"
C = Elf(
    needed=["libtorch_cuda.so", "libcudart.so.13", "libcuda.so.1", "libc.so.6", "libstdc++.so.6"],
    imports=[
        *(TENSOR, "aoti_torch_empty", "cublasLtMatmul", "cuLaunchKernel", "PyModule_Create2", COUT),
        *("cudaMalloc@libcudart.so.13@libcudart.so.13", "open@GLIBC_2.29@libc.so.6"),
        "_ZSt4cerrv@GLIBCXX_3.4.30@libstdc++.so.6",
    ],
    weak=["_ZN2at4goneEv"],
    gpu=["sm_120f", "compute_90"],
)
TORCH_CUDA = Elf(
    needed=["libc10.so", "libcublasLt.so.13"],
    runpath="$ORIGIN:$ORIGIN/../../nvidia/cu13/lib",
    exports=["aoti_torch_empty"],
)
FILES: dict[str, dict[str, Elf | bytes]] = {
    "vllm": {
        "vllm/_C.abi3.so": C,
        "vllm/_flash_C.abi3.so": Elf(gpu=["sm_90a"]),
        "vllm/gemm/_D.cpython-312-aarch64-linux-gnu.so": Elf(needed=["libgone.so"]),
        "vllm/gemm/_D.cpython-313-aarch64-linux-gnu.so": Elf(needed=["libnuma.so.1"]),
    },
    "torch": {
        "torch/lib/libtorch_cuda.so": TORCH_CUDA,
        "torch/lib/libc10.so": Elf(exports=[TENSOR]),
        "torch/lib/libunused.so": b"no library",
    },
    "runtime": {
        "nvidia/cu13/lib/libcudart.so.13": Elf(exports=["cudaMalloc@libcudart.so.13"]),
        "nvidia/cu13/lib/libcublasLt.so.13": Elf(exports=["cublasLtMatmul"]),
    },
}
NAMES = {
    "vllm": "vllm-0.19.0-cp38-abi3-manylinux_2_31_aarch64.whl",
    "torch": "torch-2.12.0-cp313-cp313-manylinux_2_28_aarch64.whl",
    "runtime": "nvidia_cuda_runtime-13.0.96-py3-none-manylinux_2_17_aarch64.whl",
}


def subject(folder: Path, files: Any = FILES, **changes: Any) -> Subject:
    """A cell with wheels of ``files``."""
    requires = {"vllm": ("torch==2.10.0",)}
    wheels = tuple(
        wheel(folder, NAMES[name], members, requires=requires.get(name))
        for name, members in files.items()
    )
    resolution = Resolution(
        name="pair",
        created="2026-11-20",
        platform=Platform("linux/arm64"),
        python="3.13",
        glibc="2.36",
        channel="cu130",
        requirements=(),
        overrides=(),
        torch=TorchBuild(version="2.12.0+cu130", cuda="13.0"),
        wheels=wheels,
    )
    base = LockedBase(
        name="bookworm",
        platform=Platform("linux/arm64"),
        created="2026-11-20",
        image="debian:bookworm",
        digest=None,
        suite="bookworm",
        packages=(),
        debs=(deb("libstdc++6", "12.2.0-14"), deb("libnuma1")),
        builder=(),
    )
    found = Subject(
        name="cell", where="matrix.yaml:9", resolution=resolution, base=base, capability=121
    )
    for name, value in changes.items():
        own = replace(found.resolution, **{name: value}) if hasattr(resolution, name) else None
        found = replace(found, resolution=own) if own else replace(found, **{name: value})
    return found


def machine(folder: Path) -> Settings:
    return replace(settings(folder), find_links=(folder,), indexes=())


def audited(folder: Path, files: Any = FILES, **changes: Any) -> Audit:
    return auditing.audit(subject(folder, files, **changes), Reader(machine(folder)))


def changed(name: str, path: str, library: Elf | None) -> dict[str, dict[str, Elf | bytes]]:
    """The wheels with another library, or without it."""
    files = {key: dict(members) for key, members in FILES.items()}
    files[name].pop(path, None)
    return files | {name: {**files[name], **({path: library} if library else {})}}
