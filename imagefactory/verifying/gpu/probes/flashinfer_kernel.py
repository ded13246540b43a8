"""A FlashInfer kernel, compiled by its JIT for this GPU and run."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

FAULTS = {"flashinfer": ("no-weight",)}


def run(torch: Any, plant: str) -> dict[str, Any]:
    """RMSNorm from FlashInfer's sources, in a workspace of its own so that it is compiled."""
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path=f"{home}/bin")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FLASHINFER_WORKSPACE_BASE"] = folder
        try:
            import flashinfer  # noqa: PLC0415 - reads the variable when it is imported
        except ImportError as error:
            return {"missing": f"{type(error).__name__}: {error}"}
        if nvcc is None:
            return {"missing": "no nvcc on the PATH or in CUDA_HOME, which its JIT needs"}
        return {"version": flashinfer.__version__, **_norm(torch, flashinfer, plant, Path(folder))}


def _norm(torch: Any, flashinfer: Any, plant: str, folder: Path) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(33, 1024, generator=generator).to(torch.bfloat16)
    weight = torch.randn(1024, generator=generator).to(torch.bfloat16)
    got = flashinfer.norm.rmsnorm(rows.cuda(), weight.cuda(), 1e-6).cpu().double()
    exact = rows.double() / (rows.double().square().mean(1, keepdim=True) + 1e-6).sqrt()
    if plant != "no-weight":
        exact = exact * weight.double()
    return {
        "compiled": [path.name for path in folder.rglob("*.so")],
        "error": float((got - exact).norm() / exact.norm()),
        "elements": got.numel(),
    }


PROBES = {"flashinfer": run}
