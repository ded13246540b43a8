"""Asks vLLM how many KV-cache blocks models get, without weights and without a GPU.

It runs with the Python of vLLM's CPU build, on which `make memory-table` starts it:

    python memory_of_vllm.py FOLDER_OF_MODELS < cases.json > answers.json

A case names a model (a folder with config.json), bytes of memory for the KV cache, and settings.
vLLM builds its own model on PyTorch's "meta" device, which allocates nothing; each layer says what
it keeps, and vLLM's own planner divides the memory. Two things of the CPU build are set to what
they are on a GPU: block sizes are multiples of 16 (`kernel_block`), and states of Mamba have the
type that the model asks for. Experts of Nemotron-H, which keep nothing and for which it has no
kernels, are left out.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

os.environ |= {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}

import torch
import vllm
from transformers.utils import is_torchvision_available
from vllm.config import VllmConfig, get_layers_from_vllm_config, set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.model_executor.models import registry
from vllm.platforms import current_platform
from vllm.utils.torch_utils import set_default_torch_dtype
from vllm.v1.attention.backend import MultipleOf
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend
from vllm.v1.core import kv_cache_utils

#: What processors of images import; PyPI's does not load beside a CPU torch.
VISION = "", ".transforms", ".transforms.functional", ".transforms.v2", ".transforms.v2.functional"


def main() -> None:
    """Answer the cases of standard input."""
    out = os.dup(1)
    os.dup2(2, 1)  # libraries print to standard output
    is_torchvision_available()  # remembers that it is not
    sys.modules |= {
        f"torchvision{name}": mock.MagicMock(__path__=[], __spec__=None) for name in VISION
    }
    with ExitStack() as stack:
        # inspects a model in this process: another one would import vLLM for each
        here = mock.Mock(side_effect=lambda inspect: inspect())
        stack.enter_context(mock.patch.object(registry, "_run_in_subprocess", here))
        answers = [{**case, **_answer(case)} for case in json.load(sys.stdin)]
    os.write(out, (json.dumps({"vllm": vllm.__version__, "cases": answers}) + "\n").encode())


def _answer(case: dict[str, Any]) -> dict[str, Any]:
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        raw = json.loads((Path(sys.argv[1]) / case["model"] / "config.json").read_text())
        raw.pop("quantization_config", None)  # a CPU lacks its kernels, and it is not of the cache
        pattern = raw.get("hybrid_override_pattern", "")
        if pattern:
            raw["hybrid_override_pattern"] = pattern.replace("E", "-")
        (Path(folder) / "config.json").write_text(json.dumps(raw))
        block = case.get("kernel_block", 16)
        sizes = mock.Mock(return_value=[MultipleOf(block)])
        stack.enter_context(
            mock.patch.object(CPUAttentionBackend, "get_supported_kernel_block_sizes", sizes)
        )
        config = _config(case, folder, block)
        text = raw.get("text_config", raw)
        config.cache_config.mamba_ssm_cache_dtype = (
            text.get("mamba_ssm_dtype") or text.get("mamba_ssm_cache_dtype") or "auto"
        )
        stack.enter_context(set_current_vllm_config(config))
        _initialize(case.get("nodes", 1))
        with set_default_torch_dtype(torch.bfloat16), torch.device("meta"):
            model = initialize_model(vllm_config=config)
            drafts = config.speculative_config
            if drafts:
                initialize_model(vllm_config=config, model_config=drafts.draft_model_config)
        whole = "E" not in pattern and case.get("nodes", 1) == 1
        size = sum(one.numel() for one in model.parameters()) if whole else None
        return {**_planned(config, case["memory"]), "parameters": size}


def _config(case: dict[str, Any], folder: str, block: int) -> VllmConfig:
    drafts = {"method": "mtp", "num_speculative_tokens": case.get("speculative")}
    return EngineArgs(
        model=folder,
        load_format="dummy",
        skip_tokenizer_init=True,
        enforce_eager=True,
        dtype="bfloat16",
        block_size=block,
        tensor_parallel_size=case.get("nodes", 1),
        max_num_seqs=4,
        max_model_len=case["context"],
        max_num_batched_tokens=8192,
        kv_cache_dtype=case.get("kv_cache_dtype", "auto"),
        limit_mm_per_prompt={"image": 0, "video": 0},
        enable_prefix_caching=case.get("prefix_caching"),
        speculative_config=drafts if case.get("speculative") else None,
    ).create_engine_config()


def _initialize(nodes: int) -> None:
    """Groups of one process, which believes to be the first of ``nodes``.

    Which groups there are depends on the model.
    """
    if not torch.distributed.is_initialized():
        parallel_state.init_distributed_environment(
            world_size=1,
            rank=0,
            local_rank=0,
            backend="gloo",
            distributed_init_method=f"file://{tempfile.mkdtemp()}/rendezvous",
        )
    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(1, 1)
    parallel_state.get_tp_group().world_size = nodes


def _planned(config: VllmConfig, memory: int) -> dict[str, Any]:
    current_platform.update_block_size_for_backend(config)
    layers = get_layers_from_vllm_config(config, AttentionLayerBase)
    specs = {name: layer.get_kv_cache_spec(config) for name, layer in layers.items()}
    specs = {name: spec for name, spec in specs.items() if spec is not None}
    config.cache_config.kv_cache_layout = "LBHNC"
    (planned,) = kv_cache_utils.get_kv_cache_configs(config, [specs], [memory])
    tokens, _ = kv_cache_utils.get_kv_cache_capacity(config, planned)
    return {
        "blocks": planned.num_blocks,
        "tokens": tokens,
        "in_flight": config.max_in_flight_tokens,
        "groups": [
            [type(group.kv_cache_spec).__name__, len(group.layer_names)]
            for group in planned.kv_cache_groups
        ],
    }


if __name__ == "__main__":
    main()
