"""Asks vLLM for the tuned configurations of its fused-MoE kernel on a GB10.

Upstream's own ``get_moe_configs`` makes the name of the file and looks for it, with a stand-in for
the GPU that says what a GB10 says. What it returns must be what it returns in 0.28.0, the first
release that has the files.

Files read: ``vllm/model_executor/layers/fused_moe/fused_moe.py`` and, beside it, ``configs``.
"""

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace

import proofkit

KERNEL = "vllm/model_executor/layers/fused_moe/fused_moe.py"
#: Experts, their size on one GPU, their data type and the sides of the blocks that share a scale.
SHAPES = [(256, 512, "fp8_w8a8", 128, 128), (512, 512, "fp8_w8a8", 128, 128)]
#: SHA-256 of what 0.28.0 returns for each of them, as JSON with sorted keys.
UPSTREAM = "d5c55141e94febc7cf7a85afc4c4574f4946b5f6d3b18b3f96ff8e522191e699"


class Logger:
    """Logs nothing."""

    def __getattr__(self, name: str) -> object:
        return lambda *_, **__: None


def judge(tree: Path) -> proofkit.Verdict:
    """The symptom is a shape without a configuration, or with another than upstream's."""
    source = proofkit.Source(tree / KERNEL)
    known = {
        "current_platform": SimpleNamespace(get_device_name=lambda *_: "NVIDIA GB10"),
        "envs": SimpleNamespace(VLLM_TUNED_CONFIG_FOLDER=None, VLLM_BATCH_INVARIANT=False),
        "vllm_is_batch_invariant": lambda: False,
        "logger": Logger(),
    }
    space = source.in_tree(tree, known)
    space["__file__"] = str(source.path)
    wrong = []
    for shape in SHAPES:
        name = "E={},N={}, {}, blocks of {} x {}".format(*shape)
        found = space["get_moe_configs"](*shape)
        if not found:
            wrong.append(f"{name}: no configuration for NVIDIA_GB10, so the default one is used")
        else:
            text = json.dumps({str(tokens): row for tokens, row in found.items()}, sort_keys=True)
            if hashlib.sha256(text.encode()).hexdigest() != UPSTREAM:
                wrong.append(f"{name}: another configuration than upstream's")
    return proofkit.verdict(wrong, right=f"configurations for a GB10 are found: {len(SHAPES)}")


if __name__ == "__main__":
    proofkit.main(judge)
