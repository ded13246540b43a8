"""CUDA identity: which GPU this is, and whether driver, runtime and compiled code fit it."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

#: What may be planted: code for another architecture, and a driver that is too old.
FAULTS = {"identity": ("wrong-arch", "old-driver")}


def identity(torch: Any, plant: str) -> dict[str, Any]:
    """Ask torch and the driver; compute something with a kernel of torch's own."""
    properties = torch.cuda.get_device_properties(0)
    driver = ctypes.CDLL("libcuda.so.1")
    number = ctypes.c_int()
    driver.cuDriverGetVersion(ctypes.byref(number))
    supported = [number.value // 1000, number.value // 10 % 100]
    ones = torch.ones(1000, device="cuda")
    return {
        "name": properties.name,
        "capability": [properties.major, properties.minor],
        "multiprocessors": properties.multi_processor_count,
        "driver": _kernel_driver(),
        "driver_cuda": [1, 0] if plant == "old-driver" else supported,
        "runtime_cuda": [int(part) for part in torch.version.cuda.split(".")[:2]],
        "forward_compatible": _compat_library(),
        "archs": ["sm_20"] if plant == "wrong-arch" else torch.cuda.get_arch_list(),
        "sum": float((ones + ones).sum()),
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES", ""),
    }


def _kernel_driver() -> str:
    """The version of the kernel's driver, such as 580.95; empty if it does not say."""
    try:
        text = Path("/sys/module/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        text = ""
    return text.strip() or _driver_of_nvml()


def _driver_of_nvml() -> str:
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return ""
    text = ctypes.create_string_buffer(80)
    if library.nvmlInit_v2() or library.nvmlSystemGetDriverVersion(text, len(text)):
        return ""
    return text.value.decode(errors="replace")


def _compat_library() -> bool:
    """Whether the driver's library comes from CUDA's forward compatibility package."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    return any("libcuda.so" in line and "/compat/" in line for line in maps.splitlines())


PROBES = {"identity": identity}
