"""Completions that are asked for at the same time are, each through a connection of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from imagefactory.verifying import asking


class Connection:
    """A client that notes what is done with it."""

    def __init__(self, said: list[str], *, fails: bool) -> None:
        self.said, self.fails = said, fails

    def healthy(self) -> bool:
        self.said.append("opened")
        if self.fails:
            raise OSError("cut")
        return True

    def ask(self, kind: str, question: str, *, when: str) -> tuple[str, str, str]:
        self.said.append("asked")
        return kind, question, when

    def close(self) -> None:
        self.said.append("closed")


def asked(questions: Sequence[Any], said: list[str], *, fails: bool = False) -> object:
    connect: Any = lambda: Connection(said, fails=fails)  # noqa: E731
    return asking.at_once(tuple(questions), connect, seconds=5)


def test_nobody_asks_before_all_connections_are_open() -> None:
    said: list[str] = []
    found = asked("abc", said)
    assert found == tuple(("completion", one, "asked with 2 others") for one in "abc")
    assert said[:3] == ["opened"] * 3
    assert sorted(said[3:]) == ["asked"] * 3 + ["closed"] * 3


def test_a_connection_that_fails_is_closed() -> None:
    said: list[str] = []
    with pytest.raises(OSError, match="cut"):
        asked("a", said, fails=True)
    assert said == ["opened", "closed"]
