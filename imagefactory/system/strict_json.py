"""Reads JSON that others may have edited, and that every reader has to understand alike. Pure."""

from __future__ import annotations

import json
from typing import Any, NoReturn


def loads(content: bytes, limit: int, *, infinite: bool = False) -> Any:
    """The value in at most ``limit`` bytes of JSON.

    Raises ValueError for what is none, for an object that has a key twice, and for NaN and
    Infinity, unless it may have them: Python writes and reads them, most others do not.
    """
    if len(content) > limit:
        raise ValueError(f"it is longer than {limit} bytes")
    try:
        constant = None if infinite else _no_number
        text = content.decode("utf-8")  # the module would guess UTF-16, too
        return json.loads(text, object_pairs_hook=_unique, parse_constant=constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def dumps(value: object) -> bytes:
    """``value`` as JSON: equal values are equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object has a key twice")
    return found


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number")
