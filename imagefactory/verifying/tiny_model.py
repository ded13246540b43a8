"""A tiny language model whose right answers are known, for proving that a server computes and not
only listens.

Nothing is trained: the weights are written down. The model continues ``the capital of France is``
with ``Paris .`` and ``the capital of Italy is`` with ``Rome .``: the same last word, so the answer
can only come through attention; and with several countries in the prompt the nearest one wins, so
only through attention that knows positions. What follows the capital comes through the MLP of the
other layer. Zeros, NaN or garbage from any kernel end in another text, mostly ``!!!!!``.

How the 128 hidden dimensions are used: the first half says which word this is, the second half
    which word comes next.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

Weights = dict[str, NDArray[np.float32]]

CAPITALS: Mapping[str, str] = {
    "France": "Paris",
    "Italy": "Rome",
    "Japan": "Tokyo",
    "Spain": "Madrid",
    "Egypt": "Cairo",
    "Norway": "Oslo",
    "Peru": "Lima",
    "Kenya": "Nairobi",
}
#: Word 0 is what a broken model says: the arg max of zeros, and of NaN, is 0.
GARBAGE = "!"
END = "<|im_end|>"
START = "<|im_start|>"
#: After these words the answer is asked for.
MARKERS = ("is", "assistant")
NEXT_WORD: Mapping[str, str] = {
    "the": "capital",
    "capital": "of",
    "which": "city",
    "city": "is",
    **dict.fromkeys(CAPITALS.values(), "."),
    ".": END,
}
SPECIAL = ("<unk>", START, END)
WORDS = (
    GARBAGE,
    *SPECIAL,
    *("the", "capital", "of", "is", "which", "city", "?", ".", "user", "assistant", "system"),
    *CAPITALS,
    *CAPITALS.values(),
)

#: Vocabulary and width of each half of the hidden state; vLLM pads vocabularies to multiples of 64
#: anyway.
VOCABULARY = 64
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

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|> {{ message['role'] }} {{ message['content'] }} "
    "<|im_end|> {% endfor %}"
    "{% if add_generation_prompt %}<|im_start|> assistant{% endif %}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A prompt and the only right continuation, as words."""

    prompt: str
    answer: tuple[str, ...]


COMPLETIONS = (
    Question(prompt="the capital of France is", answer=("Paris", ".")),
    Question(prompt="the capital of Italy is", answer=("Rome", ".")),
    Question(
        prompt="the capital of Spain is Madrid . the capital of Norway is", answer=("Oslo", ".")
    ),
)
#: One for each country, to be asked at the same time.
AT_ONCE = tuple(
    Question(prompt=f"the capital of {country} is", answer=(capital, "."))
    for country, capital in CAPITALS.items()
)
CHATS = (Question(prompt="which city is the capital of Japan ?", answer=("Tokyo", ".")),)


def word_id(word: str) -> int:
    """The token of ``word``."""
    return WORDS.index(word)


def weights() -> Weights:
    """All tensors, by their Hugging Face names."""
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
        parts = {**_attention(active=layer == 0), **_mlp(active=layer == LAYERS - 1)}
        for norm in ("input_layernorm", "post_attention_layernorm"):
            parts[f"{norm}.weight"] = np.ones(HIDDEN, np.float32)
        tensors |= {f"model.layers.{layer}.{name}": tensor for name, tensor in parts.items()}
    return tensors


def _attention(*, active: bool) -> Weights:
    """Markers look for countries; what they bring back is the capital, in the half that says what
    comes next.

    The countries are dealt out to the heads in turn, so each head is needed for some answer.
    """
    width = HEADS * HEAD_DIM
    query, key, value = (np.zeros((width, HIDDEN), np.float32) for _ in range(3))
    output = np.zeros((HIDDEN, width), np.float32)
    if active:
        for head in range(HEADS):
            meeting = head * HEAD_DIM + MEETING_DIM
            query[meeting, [word_id(marker) for marker in MARKERS]] = 1
            key[meeting, [word_id(country) for country in CAPITALS]] = 1
        for number, (country, capital) in enumerate(CAPITALS.items()):
            slot = (number % HEADS) * HEAD_DIM + number
            value[slot, word_id(country)] = 1 / np.sqrt(HIDDEN)
            output[VOCABULARY + word_id(capital), slot] = 1
    sharp = np.full(HEAD_DIM, SHARPNESS, np.float32)
    return {
        "self_attn.q_proj.weight": query,
        "self_attn.k_proj.weight": key,
        "self_attn.v_proj.weight": value,
        "self_attn.o_proj.weight": output,
        "self_attn.q_norm.weight": sharp,
        "self_attn.k_norm.weight": sharp.copy(),
    }


def _mlp(*, active: bool) -> Weights:
    """One hidden unit a word: it fires for that word only and asks for the word that follows it.

    Words that are no markers attend to everything alike, which leaves at most half a capital with
    them; the factor makes the next word outweigh that.
    """
    gate, up = (np.zeros((VOCABULARY, HIDDEN), np.float32) for _ in range(2))
    down = np.zeros((HIDDEN, VOCABULARY), np.float32)
    if active:
        for word, following in NEXT_WORD.items():
            unit = word_id(word)
            gate[unit, unit] = 1
            up[unit, unit] = 1 / HIDDEN
            down[VOCABULARY + word_id(following), unit] = 4
    return {"mlp.gate_proj.weight": gate, "mlp.up_proj.weight": up, "mlp.down_proj.weight": down}


def config() -> dict[str, Any]:
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
        "eos_token_id": word_id(END),
    }


def tokenizer() -> dict[str, Any]:
    """``tokenizer.json``: a word is a token."""
    added = [
        {
            "id": word_id(word),
            "content": word,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for word in SPECIAL
    ]
    filler = {f"<unused{number}>": number for number in range(len(WORDS), VOCABULARY)}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {word: number for number, word in enumerate(WORDS)} | filler,
            "unk_token": "<unk>",
        },
    }


def write(folder: Path) -> Path:
    """Write the model into ``folder`` (made if missing), the same bytes every time.

    Returns the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "<unk>",
        "eos_token": END,
        "pad_token": END,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 256,
        "chat_template": CHAT_TEMPLATE,
    }
    for name, value in {
        "config.json": config(),
        "tokenizer.json": tokenizer(),
        "tokenizer_config.json": tokenizer_config,
    }.items():
        (folder / name).write_text(
            json.dumps(value, indent=1, sort_keys=True) + "\n", encoding="utf-8"
        )
    (folder / "model.safetensors").write_bytes(save(weights(), metadata={"format": "pt"}))
    return folder
