"""Configurations as authors publish them, and the parameters that they say they have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.memory import model

from imagefactory.errors import InputError
from imagefactory.memory import config, finding

NEMOTRON = {
    "model_type": "nemotron_h",
    "conv_kernel": 4,
    "head_dim": 128,
    "mamba_head_dim": 64,
    "mlp_hidden_act": "relu2",
    "n_groups": 8,
    "n_shared_experts": 1,
    "num_key_value_heads": 2,
    "ssm_state_size": 128,
    "vocab_size": 131072,
    "max_position_embeddings": 262144,
    "n_routed_experts": 512,
    "num_experts_per_tok": 22,
}
SUPER = {
    **NEMOTRON,
    "hidden_size": 4096,
    "hybrid_override_pattern": (
        "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME"
    ),
    "intermediate_size": 2688,
    "mamba_num_heads": 128,
    "moe_intermediate_size": 2688,
    "moe_latent_size": 1024,
    "moe_shared_expert_intermediate_size": 5376,
    "num_attention_heads": 32,
    "num_hidden_layers": 88,
}
#: Its file says what each layer is, and no number of layers.
ULTRA = {
    **NEMOTRON,
    "hidden_size": 8192,
    "intermediate_size": 5120,
    "layers_block_type": ["mamba", "moe"] * 36 + ["mamba", "attention", "moe"] * 12,
    "mamba_num_heads": 256,
    "moe_intermediate_size": 5120,
    "moe_latent_size": 2048,
    "moe_shared_expert_intermediate_size": 10240,
    "num_attention_heads": 64,
}
MINIMAX = {
    "model_type": "minimax_m2",
    "attn_type_list": [1] * 62,
    "head_dim": 128,
    "hidden_size": 3072,
    "intermediate_size": 1536,
    "max_position_embeddings": 196608,
    "num_attention_heads": 48,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 62,
    "num_key_value_heads": 8,
    "num_local_experts": 256,
    "vocab_size": 200064,
}
LLAMA = {
    "model_type": "llama4_text",
    "head_dim": 128,
    "hidden_size": 5120,
    "intermediate_size": 8192,
    "intermediate_size_mlp": 16384,
    "max_position_embeddings": 1048576,
    "num_attention_heads": 40,
    "num_experts_per_tok": 1,
    "num_hidden_layers": 48,
    "num_key_value_heads": 8,
    "vocab_size": 202048,
}


@pytest.mark.parametrize(
    ("values", "billions"),
    [
        (SUPER, 120.6),
        (ULTRA, 550),
        (MINIMAX, 229),
        ({**LLAMA, "num_local_experts": 128, "interleave_moe_layer_step": 2}, 400),
        ({**LLAMA, "num_local_experts": 16, "interleave_moe_layer_step": 1}, 108),
    ],
)
def test_parameters_are_those_that_the_authors_name(
    values: dict[str, Any], billions: float
) -> None:
    found = config.read(values, "model", "config.json")
    count = sum(part.elements for part in found.parts if not part.draft)
    assert count / 1e9 == pytest.approx(billions, rel=0.005)


def test_a_list_says_which_layers_have_experts() -> None:
    every = config.read({**MINIMAX, "moe_layer_freq": [1] * 62}, "model", "config.json")
    first = config.read({**MINIMAX, "moe_layer_freq": [0] * 3 + [1] * 59}, "model", "config.json")
    dense = [part.layer for part in first.parts if part.module.endswith("gate_up_proj")]
    assert dense == [0, 1, 2]
    assert not [part for part in every.parts if part.module.endswith("gate_up_proj")]


@pytest.mark.parametrize(
    "key",
    [
        {"attn_type_list": [1] * 61 + [0]},
        {"hybrid_layer_pattern": [0, 1]},
        {"hybrid_layer_pattern": [1] * 62},
        {"sparse_attention_config": {"sparse_attention_freq": [0, 1]}},
        {"block_configs": [{}]},
    ],
)
def test_caches_that_are_not_known_are_refused(key: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="cannot plan for such a cache"):
        config.read({**MINIMAX, **key}, "model", "config.json")


def test_a_file_may_have_infinity_as_nemotrons_have(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**SUPER, "time_step_limit": [0.0, float("inf")]}))
    assert "Infinity" in path.read_text()
    assert finding.find(str(path), {}).raw


def test_optimized_weights_need_not_name_their_method() -> None:
    """Older files of Model Optimizer only name it as their producer; vLLM takes that, too."""
    quantized = {"producer": {"name": "modelopt"}, "quant_algo": "FP8", "ignore": ["lm_head"]}
    assert model("Qwen3-0.6B", quantization_config=quantized).quantization == "FP8"
    with pytest.raises(InputError, match="the method None"):
        model("Qwen3-0.6B", quantization_config={**quantized, "producer": {"name": "x"}})
