"""What torch reports about itself, and whether its files are those that were installed."""

from __future__ import annotations

import importlib.metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from imagefactory.verifying.probe_core import Context

LEAVES_TRACES = True


def facts(context: Context) -> dict[str, Any]:
    """Version, CUDA version and GPU architectures, or the error of ``import torch``."""
    found: dict[str, Any] = {
        "version": None,
        "cuda": None,
        "arch_flags": [],
        "error": None,
        "damaged": None if context.files_judged else damaged("torch", context),
    }
    try:
        import torch  # noqa: PLC0415

        found["version"] = str(torch.__version__)
        found["cuda"] = torch.version.cuda
        flags = getattr(torch._C, "_cuda_getArchFlags", None)  # noqa: SLF001
        found["arch_flags"] = (flags() or "").split() if flags else []
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the finding
        found["error"] = f"{type(error).__name__}: {error}"
    return found


def damaged(name: str, context: Context) -> list[str]:
    """Files of a distribution that are missing or of another size than its RECORD says.

    Hashing them takes too long.
    """
    try:
        files = context.recorded(importlib.metadata.distribution(name))
    except importlib.metadata.PackageNotFoundError:
        return []
    faults = []
    for file, size in files.items():
        # Console scripts are outside and get the interpreter's path written into them.
        if file.startswith("../"):
            continue
        path = context.site / file
        if not path.is_file():
            faults.append(f"{file}: missing")
        elif size is not None and path.stat().st_size != size:
            faults.append(f"{file}: {path.stat().st_size} bytes, not {size}")
    return faults
