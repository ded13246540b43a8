"""The dense model with a larger vocabulary: it reasons, calls a function and reads its result.

Its chat template and its answers have the shape of Qwen3's, so that vLLM's parsers find reasoning
and calls in them. Asked which country is beside Japan, it calls ``neighbour`` with Japan; told by
the function that it is Norway, it answers with the capital of Norway.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from imagefactory.verifying.models import dense
from imagefactory.verifying.models.models import TinyModel
from imagefactory.verifying.models.words import (
    CAPITALS,
    CHATS,
    COMPLETIONS,
    END,
    NEXT_WORD,
    PLAIN,
    SPECIAL,
    Language,
    Question,
)

THINK, THOUGHT = "<think>", "</think>"
CALL, CALLED = "<tool_call>", "</tool_call>"
#: The prompt's last word where a function is to be called.
NOW = "now"
COUNTRY = '{"country":'
#: A country as the end of a call's arguments.
QUOTED: Mapping[str, str] = {country: f'"{country}"}}}}' for country in CAPITALS}
CHAIN = (NOW, CALL, '{"name":', '"neighbour",', '"arguments":', COUNTRY)

#: It thinks first, unless ``enable_thinking`` is false; then, as in Qwen3's template, the prompt
#: says that it has thought.
TEMPLATE = (
    "{% for message in messages %}<|im_start|> {{ message['role'] }} "
    "{% if message.get('tool_calls') %}{% for call in message['tool_calls'] %}<tool_call> "
    "{{ call['function']['arguments'] | tojson }} </tool_call> {% endfor %}"
    "{% else %}{{ message['content'] }} {% endif %}<|im_end|> {% endfor %}"
    "{% if add_generation_prompt %}<|im_start|> assistant"
    "{% if enable_thinking is false %} <think> </think>{% endif %}"
    "{% if tools and messages[-1]['role'] == 'user' %} now{% endif %}{% endif %}"
)
LANGUAGE = Language(
    words=(
        *PLAIN.words,
        *(THINK, THOUGHT, CALL, CALLED, "let", "me", "see", "country", "beside", "tool"),
        *(NOW, *CHAIN[2:]),
        *QUOTED.values(),
    ),
    special=SPECIAL,
    whole=(THINK, THOUGHT, CALL, CALLED),
    next_word={
        **NEXT_WORD,
        "assistant": THINK,
        THINK: "let",
        "let": "me",
        "me": "see",
        "see": THOUGHT,
        **dict(pairwise(CHAIN)),
        **dict.fromkeys(QUOTED.values(), CALLED),
        CALLED: END,
    },
    markers=("is", THOUGHT),
    template=TEMPLATE,
)

PARSERS = (
    *("--reasoning-parser", "qwen3"),
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "neighbour",
            "description": "A country beside another",
            "parameters": {
                "type": "object",
                "properties": {"country": {"type": "string"}},
                "required": ["country"],
            },
        },
    }
]
ASKED = {"role": "user", "content": "which country is beside Japan ?"}
#: What the model is to call, and the messages once that was done.
ARGUMENTS = json.dumps({"country": "Japan"})
RESULT: list[dict[str, Any]] = [
    ASKED,
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "neighbour", "arguments": ARGUMENTS},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "Norway"},
]
NOT_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}
PLAIN_CHATS = tuple(
    Question(prompt=one.prompt, answer=one.answer, extra=NOT_THINKING) for one in CHATS
)
REASONING = (
    Question(prompt=CHATS[0].prompt, answer=(THINK, "let", "me", "see", THOUGHT, *CHATS[0].answer)),
)
CALLS = (
    Question(
        prompt=ASKED["content"],
        answer=("neighbour", *ARGUMENTS.split()),
        finish="tool_calls",
        extra={"tools": TOOLS, **NOT_THINKING},
    ),
    Question(
        prompt=ASKED["content"],
        answer=("Oslo", "."),
        extra={"tools": TOOLS, "messages": RESULT, **NOT_THINKING},
    ),
)


def write(folder: Path) -> Path:
    """Write the model into ``folder``."""
    LANGUAGE.write(folder, dense.config(LANGUAGE))
    dense.save(folder, dense.weights(LANGUAGE, quoted=((COUNTRY,), QUOTED)))
    return folder


MODEL = TinyModel(
    name="dialog",
    proves="the dense model's, and that reasoning, calls of functions and their results arrive",
    write=write,
    completions=COMPLETIONS,
    chats=PLAIN_CHATS,
    reasoning=REASONING,
    calls=CALLS,
    serve_args=("--dtype", "float32", *PARSERS),
)
