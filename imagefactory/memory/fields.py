"""Reads values of a config.json, and collects what is wrong with them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from imagefactory.errors import InputError, Problem

#: No model has more of anything.
MOST = 1 << 30
REMEDY = "compare it with the config.json that the model's authors published"


class Fields:
    """The keys of one configuration; ``finish`` raises for all that were wrong."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values = values
        self.where = where
        self.problems: dict[str, Problem] = {}

    def wrong(self, what: str, *, fix: str = REMEDY) -> None:
        """Note a problem."""
        problem = Problem(code="model-config", what=what, where=self.where, fix=fix)
        self.problems.setdefault(what, problem)

    def has(self, *names: str) -> bool:
        """Whether one of the keys has a value."""
        return any(self.values.get(name) is not None for name in names)

    def number(self, *names: str, default: int | None = None, least: int = 1) -> int:
        """The first of the keys that has a value, as a number of at least ``least``."""
        for name in names:
            value = self.values.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                self.wrong(f"{name} is not a whole number: {value!r:.60}")
            elif not least <= value <= MOST:
                self.wrong(f"{name} is {value}, not {least} to {MOST}")
            else:
                return value
            return max(least, 1)
        if default is None:
            self.wrong(f"{' or '.join(names)} is missing")
            return max(least, 1)
        return default

    def flag(self, name: str, *, default: bool = False) -> bool:
        """A key that is true or false."""
        value = self.values.get(name)
        if value is not None and not isinstance(value, bool):
            self.wrong(f"{name} is neither true nor false: {value!r:.60}")
        return value if isinstance(value, bool) else default

    def text(self, *names: str, default: str = "") -> str:
        """The first of the keys that has a value, as text."""
        for name in names:
            value = self.values.get(name)
            if isinstance(value, str):
                return value
            if value is not None:
                self.wrong(f"{name} is not text: {value!r:.60}")
                return default
        return default

    def texts(self, name: str, length: int, allowed: Sequence[str]) -> list[str]:
        """A list with one of ``allowed`` for each of ``length`` layers; empty if there is none."""
        value = self.values.get(name)
        if value is None:
            return []
        if not isinstance(value, list) or len(value) < length:
            self.wrong(f"{name} is not a list with an entry for each of the {length} layers")
            return []
        unknown = sorted({str(one) for one in value if one not in allowed})
        for one in unknown:
            self.wrong(
                f"{name} has {one!r:.60}, which this version cannot plan for",
                fix=f"it knows {', '.join(allowed)}; vLLM itself reports its KV cache at the start",
            )
        return [] if unknown else [str(one) for one in value[:length]]

    def finish(self) -> None:
        """Raise InputError for what was noted."""
        if self.problems:
            raise InputError(self.problems.values())
