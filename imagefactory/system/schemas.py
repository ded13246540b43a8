"""What a pydantic class allows at a place in a file, for messages that name it."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel

#: What pydantic calls errors of a kind: what is needed, and how that is written.
_KINDS = {
    "dict_type": ("a mapping", "write `key: value` lines below it"),
    "model_type": ("a mapping", "write `key: value` lines below it"),
    "list_type": ("a list", "write [a, b], or lines that begin with `-`"),
    "tuple_type": ("a list", "write [a, b], or lines that begin with `-`"),
    "string_type": ("one value", "write one value"),
    "bool_type": ("true or false", "write true or false"),
    "int_type": ("a whole number", "write a number without quotes"),
    "string_too_short": ("a text that is not empty", "write a text"),
    "too_short": ("a list that is not empty", "write at least one"),
}


def keys_at(schema: type[BaseModel], loc: Iterable[str | int]) -> tuple[str, ...]:
    """The keys of the mapping at ``loc``; none if that is no mapping, or may have any keys."""
    whole = _json_schema(schema)
    places = [*_members(whole, whole)]
    for part in loc:
        below = [one for place in places for one in _below(place, part)]
        places = [one for place in below for one in _members(place, whole)]
    return tuple(sorted({key for place in places for key in place.get("properties", ())}))


@cache
def _json_schema(schema: type[BaseModel]) -> dict[str, Any]:
    return schema.model_json_schema()


def _members(place: Mapping[str, Any], whole: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """``place`` itself or, if it is a reference or a union, what that stands for."""
    if "$ref" in place:
        yield from _members(whole["$defs"][place["$ref"].rpartition("/")[2]], whole)
    elif "anyOf" in place:
        for one in place["anyOf"]:
            yield from _members(one, whole)
    else:
        yield place


def _below(place: Mapping[str, Any], part: str | int) -> Iterator[Mapping[str, Any]]:
    """What may be at an index of a list, or at a key of a mapping."""
    if isinstance(part, int):
        found = [place.get("items")]
    else:
        others = [place.get("additionalProperties"), *place.get("patternProperties", {}).values()]
        found = [place["properties"][part]] if part in place.get("properties", {}) else others
    # true and false allow anything, or nothing
    yield from (one for one in found if isinstance(one, dict))


def closest(key: str, known: Collection[str]) -> str | None:
    """The key that ``key`` is probably meant to be; None if there is none."""
    return next(iter(difflib.get_close_matches(key, sorted(known), n=1)), None)


def instead_of(key: str, known: Collection[str]) -> str:
    """What to do about a key that is not among the ``known`` ones."""
    meant = closest(key, known)
    if meant:
        return f"write {meant!r}"
    return f"write one of {', '.join(known)}, or remove it" if known else "remove it"


def wanted(detail: Mapping[str, Any], known: Collection[str]) -> tuple[str, str]:
    """What an error of pydantic says of a value, and how to write it.

    The first follows the name of the value; ``known`` are the keys that it may have.
    """
    kind, fix = _KINDS.get(detail["type"], ("", "write a value of that kind"))
    if not kind:
        return f": {detail['msg'].removeprefix('Value error, ')}", fix
    if kind == "a mapping" and known:
        fix += f"; the keys are {', '.join(known)}"
    return f" has to be {kind}", fix
