"""A dense Qwen3 in float32, of which every weight is written down.

Nothing is trained. The model continues ``the capital of France is`` with ``Paris .`` and ``the
capital of Italy is`` with ``Rome .``: the same last word, so the answer can only come through
attention; and with several countries in the prompt the nearest one wins, so only through attention
that knows positions. What follows the capital comes through the MLP of the other layer. Zeros, NaN
or garbage from any kernel end in another text, mostly ``!!!!!``.

How the 128 hidden dimensions are used: the first half says which word this is, the second half
    which word comes next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imagefactory.verifying.models import formats
from imagefactory.verifying.models.models import TinyModel
from imagefactory.verifying.models.words import CAPITALS, END, PLAIN, VOCABULARY, Language

Weights = dict[str, NDArray[np.float32]]

#: The first half of the hidden state says which word this is, the second which comes next.
HIDDEN = 2 * VOCABULARY
HEADS = 2
HEAD_DIM = 64
LAYERS = 2
ROPE_THETA = 1e6
#: Query and key meet in one dimension of the head. RoPE turns it by 0.02 rad a position: the score
#: falls with distance, slowly enough that prompts of some seventy words stay on the falling side,
#: fast enough to distinguish neighbours.
MEETING_DIM = 9
#: Norm weights of query and key: the score of a country at distance 0 is their product times
#: sqrt(HEAD_DIM).
SHARPNESS = 8.0


def weights(
    language: Language = PLAIN, quoted: tuple[Sequence[str], Mapping[str, str]] = ((), {})
) -> Weights:
    """All tensors, by their Hugging Face names.

    ``quoted`` is for the last layer's attention: markers, and the word that they bring back there
    for each country.
    """
    embed = np.zeros((VOCABULARY, HIDDEN), np.float32)
    embed[np.arange(VOCABULARY), np.arange(VOCABULARY)] = 1
    predict = np.zeros((VOCABULARY, HIDDEN), np.float32)
    predict[np.arange(VOCABULARY), VOCABULARY + np.arange(VOCABULARY)] = 1
    tensors: Weights = {
        "model.embed_tokens.weight": embed,
        "model.norm.weight": np.ones(HIDDEN, np.float32),
        "lm_head.weight": predict,
    }
    for layer in range(LAYERS):
        last = layer == LAYERS - 1
        markers, brought = quoted if last else (language.markers, CAPITALS)
        parts = {**_attention(language, markers, brought), **_mlp(language, active=last)}
        for norm in ("input_layernorm", "post_attention_layernorm"):
            parts[f"{norm}.weight"] = np.ones(HIDDEN, np.float32)
        tensors |= {f"model.layers.{layer}.{name}": tensor for name, tensor in parts.items()}
    return tensors


def _attention(language: Language, markers: Sequence[str], brought: Mapping[str, str]) -> Weights:
    """Markers look for countries; what is brought back for one, such as its capital, goes to the
    half that says what comes next.

    The countries are dealt out to the heads in turn, so each head is needed for some answer.
    """
    width = HEADS * HEAD_DIM
    query, key, value = (np.zeros((width, HIDDEN), np.float32) for _ in range(3))
    output = np.zeros((HIDDEN, width), np.float32)
    for head in range(HEADS if brought else 0):
        meeting = head * HEAD_DIM + MEETING_DIM
        query[meeting, [language.token(marker) for marker in markers]] = 1
        key[meeting, [language.token(country) for country in brought]] = 1
    for number, (country, word) in enumerate(brought.items()):
        slot = (number % HEADS) * HEAD_DIM + number
        value[slot, language.token(country)] = 1 / np.sqrt(HIDDEN)
        output[VOCABULARY + language.token(word), slot] = 1
    sharp = np.full(HEAD_DIM, SHARPNESS, np.float32)
    return {
        "self_attn.q_proj.weight": query,
        "self_attn.k_proj.weight": key,
        "self_attn.v_proj.weight": value,
        "self_attn.o_proj.weight": output,
        "self_attn.q_norm.weight": sharp,
        "self_attn.k_norm.weight": sharp.copy(),
    }


def _mlp(language: Language, *, active: bool) -> Weights:
    """One hidden unit a word: it fires for that word only and asks for the word that follows it.

    Words that are no markers attend to everything alike, which leaves at most half a capital with
    them; the factor makes the next word outweigh that.
    """
    gate, up = (np.zeros((VOCABULARY, HIDDEN), np.float32) for _ in range(2))
    down = np.zeros((HIDDEN, VOCABULARY), np.float32)
    if active:
        for word, following in language.next_word.items():
            unit = language.token(word)
            gate[unit, unit] = 1
            up[unit, unit] = 1 / HIDDEN
            down[VOCABULARY + language.token(following), unit] = 4
    return {"mlp.gate_proj.weight": gate, "mlp.up_proj.weight": up, "mlp.down_proj.weight": down}


def config(language: Language = PLAIN) -> dict[str, Any]:
    """``config.json``."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": HIDDEN,
        "intermediate_size": VOCABULARY,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": HEAD_DIM,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 256,
        "rope_theta": ROPE_THETA,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "eos_token_id": language.token(END),
    }


def save(folder: Path, tensors: Weights) -> None:
    """Write weights in float32."""
    stored = {name: formats.float32(values) for name, values in tensors.items()}
    formats.save(folder / "model.safetensors", stored)


def write(folder: Path) -> Path:
    """Write the model into ``folder``."""
    PLAIN.write(folder, config())
    save(folder, weights())
    return folder


MODEL = TinyModel(
    name="dense",
    proves="attention that knows positions, MLP, norms and sampling, in float32",
    write=write,
    serve_args=("--dtype", "float32"),
)
