"""Sources of a release that can be tuned, in short, and a file for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from imagefactory.patching.sources import SourceTree

NAME = "E=512,N=512,device_name=NVIDIA_GB10,dtype=fp8_w8a8,block_shape=[128,128].json"
ROW = {
    "BLOCK_SIZE_M": 16,
    "BLOCK_SIZE_N": 128,
    "BLOCK_SIZE_K": 128,
    "GROUP_SIZE_M": 1,
    "num_warps": 4,
    "num_stages": 3,
}
SCRIPT = """
def sort_config(config):
    return {
        "BLOCK_SIZE_M": config["BLOCK_SIZE_M"],
        "BLOCK_SIZE_N": config["BLOCK_SIZE_N"],
        "BLOCK_SIZE_K": config["BLOCK_SIZE_K"],
        "GROUP_SIZE_M": config["GROUP_SIZE_M"],
        "num_warps": config["num_warps"],
        "num_stages": config["num_stages"],
        **({"waves_per_eu": config["waves_per_eu"]} if "waves_per_eu" in config else {}),
    }


def main(args):
    if args.batch_size is None:
        batch_sizes = [1, 2, 64]


if __name__ == "__main__":
    parser.add_argument("--dtype", type=str, choices=["auto", "fp8_w8a8"], default="auto")
"""
KERNEL = """
def get_config_file_name(E, N, dtype, block_shape=None):
    return f"E={E},N={N},device_name={device_name}{dtype_selector}{block_shape_selector}.json"


def get_default_config(M):
    return {"BLOCK_SIZE_M": 64, "SPLIT_K": 1}
"""
DTYPES = """
def _get_config_dtype_str(dtype, use_fp8_w8a8=False):
    if use_fp8_w8a8:
        return "fp8_w8a8"
    elif dtype == torch.float:
        return "float32"
    return None
"""


def tree(root: Path) -> SourceTree:
    """The sources, written to ``root``."""
    layers = root / "vllm/model_executor/layers/fused_moe"
    for path, text in (
        (root / "benchmarks/kernels/benchmark_moe.py", SCRIPT),
        (layers / "fused_moe.py", KERNEL),
        (layers / "config.py", DTYPES),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return SourceTree(project="vllm", version="0.33.0", root=root, sha256="0")


def content(**changed: Any) -> bytes:
    """A file that has all batch sizes, with some of its values changed."""
    rows = {key: dict(ROW) for key in ("1", "2", "64")}
    return json.dumps({"triton_version": "3.6.0", **rows, **changed}).encode()
