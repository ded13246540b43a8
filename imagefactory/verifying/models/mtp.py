"""Models with a head that predicts the word after next (MTP): in bfloat16, and in NVFP4 with the
head left out of the quantization.

MiMo's architecture, whose head vLLM loads in every release from 0.16 on. Where the head computes
right, every draft is accepted; where it does not, the text is right and no draft is.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from imagefactory.verifying.models import exact, formats, modelopt
from imagefactory.verifying.models.dense import HEAD_DIM, HEADS, HIDDEN, LAYERS, Weights
from imagefactory.verifying.models.models import TinyModel
from imagefactory.verifying.models.words import PLAIN

#: vLLM calls the head's layer by the number after the last one, and checkpoints by its own.
UNQUANTIZED = ("lm_head", "model.mtp_layers*", f"model.layers.{LAYERS}*")
NORMS = (
    *("token_layernorm", "hidden_layernorm", "final_layernorm"),
    *("input_layernorm", "post_attention_layernorm"),
)
SERVE = ("--speculative-config", json.dumps({"method": "mtp", "num_speculative_tokens": 1}))
DRAFTED = {"vllm:spec_decode_num_accepted_tokens_total": 0}


def write(folder: Path) -> Path:
    """Write the model into ``folder``."""
    PLAIN.write(folder, config())
    tensors = {name: formats.bfloat16(values) for name, values in weights().items()}
    formats.save(folder / "model.safetensors", tensors)
    return folder


def write_nvfp4(folder: Path) -> Path:
    """Write the model in NVFP4 into ``folder``."""
    return modelopt.write_quantized(folder, config(), weights(), excluded=UNQUANTIZED)


def config() -> dict[str, Any]:
    """``config.json``; vLLM goes by the architecture, and Qwen3's type needs no code from a hub."""
    return exact.config(
        architectures=["MiMoForCausalLM"],
        model_type="qwen3",
        num_nextn_predict_layers=1,
        attention_bias=True,
        use_sliding_window=False,
    )


def weights() -> Weights:
    """All tensors, with those of the head."""
    tensors = exact.body(sharp=exact.BY_WEIGHT)
    for layer in range(LAYERS):
        tensors |= _biases(f"model.layers.{layer}")
    return tensors | head()


def head() -> Weights:
    """The head: from the last word, through an MLP, to the word that follows it."""
    prefix = "model.mtp_layers.0"
    inner = {**exact.attention(exact.BY_WEIGHT, active=False), **exact.mlp(active=True)}
    # of the hidden state, which comes first, and the embedding of the last word
    project = np.concatenate([np.zeros((HIDDEN, HIDDEN)), np.eye(HIDDEN)], axis=1)
    return {
        **{f"{prefix}.{name}": values for name, values in inner.items()},
        **{f"{prefix}.{name}.weight": np.ones(HIDDEN, np.float32) for name in NORMS},
        f"{prefix}.input_proj.weight": project.astype(np.float32),
        **_biases(prefix),
    }


def _biases(prefix: str) -> Weights:
    names = (f"{prefix}.self_attn.{one}_proj.bias" for one in "qkv")
    return {name: np.zeros(HEADS * HEAD_DIM, np.float32) for name in names}


MODEL = TinyModel(
    name="mtp",
    proves="speculation with an MTP head: its drafts are accepted",
    write=write,
    serve_args=SERVE,
    metrics=DRAFTED,
)
QUANTIZED = TinyModel(
    name="mtp-nvfp4",
    proves="a head for speculation that is not quantized, on a model that is: drafts are accepted",
    write=write_nvfp4,
    serve_args=SERVE,
    devices=("cuda",),
    metrics=DRAFTED,
)
