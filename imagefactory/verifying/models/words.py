"""The language of the tiny models: its words, the questions asked in it, and its tokenizer.

A word is a token. The right answer to a question is one text and no other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
#: vLLM pads vocabularies to multiples of 64 anyway.
VOCABULARY = 64

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


def tokenizer_config() -> dict[str, Any]:
    """``tokenizer_config.json``."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "<unk>",
        "eos_token": END,
        "pad_token": END,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 256,
        "chat_template": CHAT_TEMPLATE,
    }


def write(folder: Path, config: Mapping[str, Any]) -> Path:
    """Write everything but the weights into ``folder`` (made if missing) and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in {
        "config.json": config,
        "tokenizer.json": tokenizer(),
        "tokenizer_config.json": tokenizer_config(),
    }.items():
        (folder / name).write_text(
            json.dumps(value, indent=1, sort_keys=True) + "\n", encoding="utf-8"
        )
    return folder
