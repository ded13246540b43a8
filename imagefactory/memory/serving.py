"""Reads what options of ``vllm serve`` mean for memory. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from imagefactory.memory.machine import GIB
from imagefactory.memory.memory import Request


def asked(options: Mapping[str, Any], request: Request) -> Request:
    """``request`` with what ``options`` say; their names have no dashes before them.

    What is no number, such as a context that vLLM chooses, is left as it is.
    """
    drafts = _object(options.get("speculative-config"))
    own_head = "mtp" in str(drafts.get("method", ""))
    return replace(
        request,
        context=_number(options.get("max-model-len")) or request.context,
        seqs=_number(options.get("max-num-seqs")) or request.seqs,
        cache_dtype=str(options.get("kv-cache-dtype", request.cache_dtype)),
        batched=_number(options.get("max-num-batched-tokens")) or request.batched,
        speculative=_number(drafts.get("num_speculative_tokens")) if own_head else 0,
        eager=options.get("enforce-eager") is True or request.eager,
        pipeline=_number(options.get("pipeline-parallel-size")) > 1 or request.pipeline,
    )


def notes(options: Mapping[str, Any]) -> tuple[str, ...]:
    """What a plan for these options leaves out."""
    model = _object(options.get("speculative-config")).get("model")
    return (f"the model {model} for drafts is not in this plan",) if model else ()


def budget(options: Mapping[str, Any], total: int) -> tuple[str, int] | None:
    """The option that sets the budget of vLLM, as it is written, and its bytes."""
    for name, unit in (("gpu-memory-utilization-gb", GIB), ("gpu-memory-utilization", total)):
        try:
            size = round(float(options.get(name, "")) * unit)
        except (TypeError, ValueError, OverflowError):  # also infinity, and what is no number
            continue
        return f"--{name} {options[name]}", size
    return None


def _number(value: object) -> int:
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() else 0


def _object(value: object) -> Mapping[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    return value if isinstance(value, Mapping) else {}
