"""The languages of the tiny models: their words, the questions asked in them, their tokenizers.

A word is a token. The right answer to a question is one text and no other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
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
NEXT_WORD: Mapping[str, str] = {
    "the": "capital",
    "capital": "of",
    "which": "city",
    "city": "is",
    **dict.fromkeys(CAPITALS.values(), "."),
    ".": END,
}
SPECIAL = ("<unk>", START, END)
#: vLLM pads vocabularies to multiples of 64 anyway.
VOCABULARY = 64

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|> {{ message['role'] }} {{ message['content'] }} "
    "<|im_end|> {% endfor %}"
    "{% if add_generation_prompt %}<|im_start|> assistant{% endif %}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Language:
    """The words of a model, and which word follows which.

    Attributes:
        words: every word; its position is its token.
        special: those that servers leave out of answers.
        whole: others that the tokenizer must not split.
        next_word: what follows a word, whatever came before.
        markers: the words after which a capital is asked for.
        template: the chat template.
    """

    words: tuple[str, ...]
    special: tuple[str, ...]
    whole: tuple[str, ...] = ()
    next_word: Mapping[str, str]
    markers: tuple[str, ...]
    template: str

    def token(self, word: str) -> int:
        """The token of ``word``."""
        return self.words.index(word)

    def tokenizer(self) -> dict[str, Any]:
        """``tokenizer.json``: a word is a token."""
        added = [
            {
                "id": self.token(word),
                "content": word,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": word in self.special,
            }
            for word in (*self.special, *self.whole)
        ]
        filler = {f"<unused{number}>": number for number in range(len(self.words), VOCABULARY)}
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
                "vocab": {word: number for number, word in enumerate(self.words)} | filler,
                "unk_token": "<unk>",
            },
        }

    def tokenizer_config(self) -> dict[str, Any]:
        """``tokenizer_config.json``."""
        return {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "unk_token": "<unk>",
            "eos_token": END,
            "pad_token": END,
            "clean_up_tokenization_spaces": False,
            "model_max_length": 256,
            "chat_template": self.template,
        }

    def write(self, folder: Path, config: Mapping[str, Any]) -> None:
        """Write everything but the weights into ``folder``, which is made if missing."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, value in {
            "config.json": config,
            "tokenizer.json": self.tokenizer(),
            "tokenizer_config.json": self.tokenizer_config(),
        }.items():
            (folder / name).write_text(
                json.dumps(value, indent=1, sort_keys=True) + "\n", encoding="utf-8"
            )


PLAIN = Language(
    words=(
        GARBAGE,
        *SPECIAL,
        *("the", "capital", "of", "is", "which", "city", "?", ".", "user", "assistant", "system"),
        *CAPITALS,
        *CAPITALS.values(),
    ),
    special=SPECIAL,
    next_word=NEXT_WORD,
    markers=("is", "assistant"),
    template=CHAT_TEMPLATE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A prompt and the only right continuation.

    Attributes:
        prompt: what is asked: the prompt, or the user's message.
        answer: the words of the right answer. Reasoning comes first, between ``<think>`` and
            ``</think>``, then a call as the function's name and its arguments in JSON.
        finish: the right ``finish_reason``.
        extra: what else the request has; ``messages`` replaces the user's message.
    """

    prompt: str
    answer: tuple[str, ...]
    finish: str = "stop"
    extra: Mapping[str, Any] = field(default_factory=dict)


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
