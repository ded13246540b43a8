"""Weights for narrow formats: each is a power of two, 3/4 of one, or zero.

As in the dense model, markers fetch a capital through attention, and each word asks for the next
through an MLP, or through the experts of a mixture. Here every right word has a rival with 3/4 of
its weight from the same source: a weight that is read as another one, from elsewhere, with
another scale or by another expert makes the rival win.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from imagefactory.verifying.models import dense
from imagefactory.verifying.models.dense import HEAD_DIM, HEADS, HIDDEN, LAYERS, Weights
from imagefactory.verifying.models.words import CAPITALS, GARBAGE, PLAIN, VOCABULARY

#: Kernels want multiples of 128.
UNITS = 128
#: RoPE turns this dimension by 0.05 rad a position, enough for neighbours to differ in half
#: precision; prompts may have some thirty words.
MEETING_DIM = 7
RIVAL = 0.75
EXPERTS = 4
CHOSEN = 2
#: What a word that is no capital has for a rival.
OTHER = "user"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharp:
    """How query and key get their size: by norms, or by their own weights."""

    norm: float | None = 8.0
    weight: float = 1.0


BY_NORM = Sharp()
#: For architectures without norms of query and key.
BY_WEIGHT = Sharp(norm=None, weight=6.0)


def body(*, sharp: Sharp = BY_NORM, mixture: bool = False) -> Weights:
    """All tensors of the layers; norms, embedding and head are those of the dense model.

    The last layer of a ``mixture`` has experts instead of an MLP.
    """
    inner = (".self_attn.", ".mlp.")
    tensors = {
        name: one
        for name, one in dense.weights().items()
        if not any(part in name for part in inner)
    }
    for layer in range(LAYERS):
        last = layer == LAYERS - 1
        parts = {**attention(sharp, active=layer == 0)}
        parts |= mixture_of_experts() if mixture and last else mlp(active=last)
        tensors |= {f"model.layers.{layer}.{name}": one for name, one in parts.items()}
    return tensors


def attention(sharp: Sharp, *, active: bool) -> Weights:
    """As in the dense model; the rival of a capital is the next country's."""
    width = HEADS * HEAD_DIM
    query, key, value = (np.zeros((width, HIDDEN), np.float32) for _ in range(3))
    output = np.zeros((HIDDEN, width), np.float32)
    if active:
        for head in range(HEADS):
            meeting = head * HEAD_DIM + MEETING_DIM
            query[meeting, [PLAIN.token(marker) for marker in PLAIN.markers]] = sharp.weight
            key[meeting, [PLAIN.token(country) for country in CAPITALS]] = sharp.weight
        capitals = tuple(CAPITALS.values())
        for number, (country, capital) in enumerate(CAPITALS.items()):
            slot = (number % HEADS) * HEAD_DIM + number
            value[slot, PLAIN.token(country)] = 1 / 8
            output[VOCABULARY + PLAIN.token(capital), slot] = 1
            rival = capitals[(number + 1) % len(capitals)]
            output[VOCABULARY + PLAIN.token(rival), slot] = RIVAL
    norms: Weights = {}
    if sharp.norm:
        norm = np.full(HEAD_DIM, sharp.norm, np.float32)
        norms = {"self_attn.q_norm.weight": norm, "self_attn.k_norm.weight": norm}
    return {
        "self_attn.q_proj.weight": query,
        "self_attn.k_proj.weight": key,
        "self_attn.v_proj.weight": value,
        "self_attn.o_proj.weight": output,
        **norms,
    }


def mlp(*, active: bool) -> Weights:
    """One hidden unit a word, which asks for the word that follows, and less for its rival."""
    names = list(PLAIN.next_word) if active else []
    return {f"mlp.{name}": one for name, one in _units(dict.fromkeys(names, True)).items()}


def mixture_of_experts() -> Weights:
    """A router and experts: each knows what follows its own words, and is wrong about the others.

    A word is sent to its own expert and, with a twentieth of the weight, to the next one.
    """
    router = np.zeros((EXPERTS, HIDDEN), np.float32)
    tensors: Weights = {"mlp.gate.weight": router}
    for word in PLAIN.words:
        own = expert_of(word)
        router[own, PLAIN.token(word)] = 1
        router[(own + 1) % EXPERTS, PLAIN.token(word)] = RIVAL
    for expert in range(EXPERTS):
        knows = {word: expert_of(word) == expert for word in PLAIN.next_word}
        tensors |= {f"mlp.experts.{expert}.{name}": one for name, one in _units(knows).items()}
    return tensors


def expert_of(word: str) -> int:
    """The expert that knows what follows ``word``."""
    return PLAIN.token(word) % EXPERTS


def _units(knows: Mapping[str, bool]) -> Weights:
    """A hidden unit for each word. If it does not know what follows it asks for the rival."""
    gate, up = (np.zeros((UNITS, HIDDEN), np.float32) for _ in range(2))
    down = np.zeros((HIDDEN, UNITS), np.float32)
    for word, right in knows.items():
        unit = PLAIN.token(word)
        gate[unit, unit] = 1
        up[unit, unit] = 1 / 16
        follows, rival = PLAIN.next_word[word], OTHER if word in CAPITALS.values() else GARBAGE
        best, second = (follows, rival) if right else (rival, follows)
        down[VOCABULARY + PLAIN.token(best), unit] = 1
        down[VOCABULARY + PLAIN.token(second), unit] = RIVAL
    return {"gate_proj.weight": gate, "up_proj.weight": up, "down_proj.weight": down}


def linear(name: str) -> bool:
    """Whether a tensor is the weight of a layer that quantization is about."""
    return "_proj.weight" in name


def config(**changes: Any) -> dict[str, Any]:
    """``config.json`` of a dense model with these weights."""
    return {**dense.config(), "intermediate_size": UNITS, "torch_dtype": "bfloat16", **changes}


def mixture_config(**changes: Any) -> dict[str, Any]:
    """``config.json`` of a mixture of experts."""
    mixture = {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "num_experts": EXPERTS,
        "num_experts_per_tok": CHOSEN,
        "moe_intermediate_size": UNITS,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": list(range(LAYERS - 1)),
        "router_aux_loss_coef": 0.0,
    }
    return config(**{**mixture, **changes})
