"""Values that differ from a given one in a single place, for tests of what depends on it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

from imagefactory.errors import FactoryError


def variants(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every value that differs from ``value`` in one place, with the path of that place.

    Dataclasses are changed field by field, so a field that is added to one has a variant, too.
    """
    if is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            inner = getattr(value, field.name)
            for path, other in variants(inner, f"{name}.{field.name}".lstrip(".")):
                yield path, replace(value, **{field.name: other})
    elif isinstance(value, Mapping):
        yield f"{name}+", {**value, "more": next(iter(value.values()), "x")}
        for key, inner in value.items():
            yield f"{name}-{key}", {k: v for k, v in value.items() if k != key}
            for path, other in variants(inner, f"{name}[{key}]"):
                yield path, {**value, key: other}
    elif isinstance(value, tuple):
        yield from _of_tuple(value, name)
    else:
        yield name, _other(value, name)


def _of_tuple(value: tuple[Any, ...], name: str) -> Iterator[tuple[str, Any]]:
    """A tuple with one item more, less or changed; items are alike, so the first is enough."""
    if not value:
        yield f"{name}+", ("x",)
        return
    yield f"{name}-", value[1:]
    for path, other in variants(value[0], f"{name}[]"):
        yield path, (other, *value[1:])


def _other(value: Any, name: str) -> Any:
    if isinstance(value, Enum):
        return next(one for one in type(value) if one is not value)
    if value is None:
        return "x"
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, Path):
        return value.with_name(f"other-{value.name}")
    if isinstance(value, str):
        last = value[-1:]
        return f"{value[:-1]}{(int(last) + 1) % 10}" if last.isdecimal() else f"{value}x"
    raise TypeError(f"{name}: no other value of {type(value).__name__} is known")


def changes(inputs: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Every variant of every input: the path of the change, the input and the changed value."""
    for name, value in inputs.items():
        for path, other in variants(value):
            yield f"{name}.{path}".rstrip("."), name, other


def wrong_keys(
    key: Callable[..., str], inputs: Mapping[str, Any], ignored: re.Pattern[str]
) -> list[str]:
    """The changes that change a key although they are ``ignored``, or leave it although not."""
    before, wrong = key(), []
    for path, name, other in changes(inputs):
        try:
            is_new = key(**{name: other}) != before
        except (FactoryError, AttributeError, KeyError, ValueError, TypeError):
            continue  # no wheel at all
        if is_new == bool(ignored.fullmatch(path)):
            wrong.append(path)
    return wrong
