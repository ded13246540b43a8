"""Qwen3-Next in small: a layer of linear attention (gated delta rule), one of full attention with
an output gate, and experts.

Every other country is known to the linear attention, the rest to the full one. The nearest country
wins in both: in the linear one because all countries are written to the same place of its state,
where the delta rule removes what was there. Country and marker get there through a convolution that
passes on the last word only, and norms are those that add 1 to their weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from imagefactory.verifying.models import exact, formats
from imagefactory.verifying.models.dense import HEAD_DIM, HEADS, HIDDEN, Weights
from imagefactory.verifying.models.exact import RIVAL
from imagefactory.verifying.models.models import TinyModel
from imagefactory.verifying.models.words import (
    AT_ONCE,
    CAPITALS,
    COMPLETIONS,
    PLAIN,
    VOCABULARY,
    Question,
)

#: Of the linear attention: a state has so many rows and columns for each head.
STATE = 128
TAPS = 4
#: Heads of values to each head of keys, and all of them. With one to one vLLM 0.22.1 dies on a GPU:
#: "`a`/`b` must be contiguous in the last dim". Qwen3-Next has two to one.
GROUP = 2
VALUE_HEADS = GROUP * HEADS
#: The part of a head that RoPE turns, and the dimension in it where query and key meet, turned by
#: 0.03 rad a position.
TURNED = 0.25
MEETING_DIM = 2
LINEAR = tuple(CAPITALS)[::2]
#: Two countries that only the linear attention knows: the second is written over the first.
OVERWRITTEN = Question(
    prompt="the capital of France is Paris . the capital of Peru is", answer=("Lima", ".")
)


def write(folder: Path) -> Path:
    """Write the model into ``folder``."""
    PLAIN.write(folder, config())
    tensors = {name: formats.bfloat16(values) for name, values in weights().items()}
    formats.save(folder / "model.safetensors", tensors)
    return folder


def config() -> dict[str, Any]:
    """``config.json``."""
    heads = {f"linear_{of}_head_dim": STATE for of in ("key", "value")}
    heads |= {"linear_num_key_heads": HEADS, "linear_num_value_heads": VALUE_HEADS}
    return exact.mixture_config(
        architectures=["Qwen3NextForCausalLM"],
        model_type="qwen3_next",
        layer_types=["linear_attention", "full_attention"],
        full_attention_interval=2,
        linear_conv_kernel_dim=TAPS,
        partial_rotary_factor=TURNED,
        shared_expert_intermediate_size=exact.UNITS,
        **heads,
    )


def weights() -> Weights:
    """All tensors."""
    tensors = {
        name: np.zeros_like(one) if "norm" in name else one
        for name, one in exact.body(mixture=True).items()
        if "self_attn" not in name
    }
    layers = {"0.linear_attn": linear_attention(), "1.self_attn": full_attention()}
    for layer, parts in layers.items():
        tensors |= {f"model.layers.{layer}.{name}": one for name, one in parts.items()}
    shared = {"gate_proj": (exact.UNITS, HIDDEN), "up_proj": (exact.UNITS, HIDDEN)}
    shared |= {"down_proj": (HIDDEN, exact.UNITS)}
    mlp = "model.layers.1.mlp"
    tensors[f"{mlp}.shared_expert_gate.weight"] = np.zeros((1, HIDDEN), np.float32)
    return tensors | {
        f"{mlp}.shared_expert.{name}.weight": np.zeros(shape, np.float32)
        for name, shape in shared.items()
    }


def linear_attention() -> Weights:
    """The layer that knows ``LINEAR``; the projections of each head follow each other."""
    markers = [PLAIN.token(marker) for marker in PLAIN.markers]
    countries = [PLAIN.token(country) for country in CAPITALS]
    # of each head of keys: query, key, values, and the gates of what they bring
    project = np.zeros((HEADS, 2 + 2 * GROUP, STATE, HIDDEN), np.float32)
    project[:, 0, 0, markers] = 1
    project[:, 1, 0, countries] = 1
    output = np.zeros((HIDDEN, VALUE_HEADS, STATE), np.float32)
    for number, country in enumerate(LINEAR):
        head = number % VALUE_HEADS
        keys, value = divmod(head, GROUP)
        project[keys, 2 + value, number, PLAIN.token(country)] = 1
        project[keys, 2 + GROUP + value, number, markers] = 1 / 8
        _bring(output[:, head, number], country, 1 / 8)
    # of each head of values: how much is written (all of a country); little is forgotten
    rates = np.zeros((HEADS, 2, GROUP, HIDDEN), np.float32)
    rates[:, 0, :, countries] = 1
    taps = np.zeros(((2 * HEADS + VALUE_HEADS) * STATE, 1, TAPS), np.float32)
    taps[:, :, -1] = 1
    return {
        "in_proj_qkvz.weight": project.reshape(-1, HIDDEN),
        "in_proj_ba.weight": rates.reshape(-1, HIDDEN),
        "conv1d.weight": taps,
        "dt_bias": np.full(VALUE_HEADS, -4, np.float32),
        "A_log": np.zeros(VALUE_HEADS, np.float32),
        "norm.weight": np.ones(STATE, np.float32),
        "out_proj.weight": output.reshape(HIDDEN, -1),
    }


def full_attention() -> Weights:
    """The layer that knows the other countries; each head's gate follows its query."""
    markers = [PLAIN.token(marker) for marker in PLAIN.markers]
    query = np.zeros((HEADS, 2, HEAD_DIM, HIDDEN), np.float32)
    query[:, 0, MEETING_DIM, markers] = 1
    query[:, 1, :, markers] = 1
    key, value = (np.zeros((HEADS, HEAD_DIM, HIDDEN), np.float32) for _ in range(2))
    key[:, MEETING_DIM, [PLAIN.token(country) for country in CAPITALS]] = 1
    output = np.zeros((HIDDEN, HEADS, HEAD_DIM), np.float32)
    for number, country in enumerate(one for one in CAPITALS if one not in LINEAR):
        value[number % HEADS, number, PLAIN.token(country)] = 1 / 8
        _bring(output[:, number % HEADS, number], country, 1)
    norm = np.full(HEAD_DIM, 7, np.float32)
    return {
        "q_proj.weight": query.reshape(-1, HIDDEN),
        "k_proj.weight": key.reshape(-1, HIDDEN),
        "v_proj.weight": value.reshape(-1, HIDDEN),
        "o_proj.weight": output.reshape(HIDDEN, -1),
        "q_norm.weight": norm,
        "k_norm.weight": norm,
    }


def _bring(column: formats.Array, country: str, weight: float) -> None:
    """Let a column of an output projection bring the capital, and less of its rival's."""
    countries = tuple(CAPITALS)
    rival = countries[(countries.index(country) + 1) % len(countries)]
    column[VOCABULARY + PLAIN.token(CAPITALS[country])] = weight
    column[VOCABULARY + PLAIN.token(CAPITALS[rival])] = weight * RIVAL


MODEL = TinyModel(
    name="hybrid",
    proves="linear attention (gated delta rule, convolution, state) beside full attention",
    write=write,
    completions=(*COMPLETIONS, OVERWRITTEN),
    at_once=AT_ONCE,
    # what a GB10 runs; by default Hopper compiles FlashInfer's kernels, for more than four minutes
    gpu_args=("--gdn-prefill-backend", "triton", "--moe-backend", "triton"),
    vllm=">=0.22",
)
