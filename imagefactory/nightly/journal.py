"""The journal of a night: each finished step with its result, so that a killed night goes on.

A step that was cut off is repeated; one that is in the journal is not. The journal is written as a
whole after every step, with how long each took, and is removed when the night ends.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from pydantic import AwareDatetime, TypeAdapter, ValidationError

from imagefactory import redaction
from imagefactory.system import files
from imagefactory.system.text import encodable

#: A night that was killed longer ago is not continued: what it found is old.
OLDEST = timedelta(hours=20)
T = TypeVar("T")
_ADAPTERS: dict[object, TypeAdapter[Any]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Last:
    """How the last night ended.

    Attributes:
        fingerprint: of what there was to act upon when it had ended; empty unless all was done.
        broken: the cells that broke.
    """

    fingerprint: str = ""
    broken: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    key: str
    began: AwareDatetime
    steps: dict[str, Any]
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Journal:
    """The journal in a folder.

    Attributes:
        folder: where it is.
        key: what the night was asked to do, and from which commit.
        began: when the night began, if it goes on after it was killed.
        steps: the results of finished steps, as JSON values.
        seconds: how long each of them took.
    """

    folder: Path
    key: str
    began: datetime
    steps: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def resumed(self) -> bool:
        """Whether an earlier run began this night."""
        return bool(self.steps)

    def step(self, name: str, kind: type[T], run: Callable[[], T]) -> T:
        """The result of a step, which is run unless an earlier run finished it."""
        adapter = _adapter(kind)
        if name in self.steps:
            with suppress(ValidationError):  # another version of imagefactory wrote it
                return adapter.validate_python(self.steps[name])
        start = time.monotonic()
        result = run()
        self.seconds[name] = time.monotonic() - start
        self.steps[name] = redaction.hide_in(adapter.dump_python(result, mode="json"))
        self._write()
        return result

    def last(self) -> Last:
        """How the last night ended; as if there was none if that cannot be read."""
        return _read(self.folder / "last.json", Last) or Last()

    def close(self, last: Last | None) -> None:
        """End the night; ``last`` is kept, unless it is None."""
        if last is not None:
            _write(self.folder / "last.json", last)
        (self.folder / "journal.json").unlink(missing_ok=True)
        self.steps, self.seconds = {}, {}

    def _write(self) -> None:
        kept = _Kept(key=self.key, began=self.began, steps=self.steps, seconds=self.seconds)
        _write(self.folder / "journal.json", kept)


def begin(folder: Path, key: Mapping[str, object], now: datetime) -> Journal:
    """The journal of a killed night with the same ``key``, or an empty one."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(key, sort_keys=True)
    kept = _read(folder / "journal.json", _Kept)
    if kept and kept.key == text and timedelta() <= now - kept.began < OLDEST:
        return Journal(
            folder=folder, key=text, began=kept.began, steps=kept.steps, seconds=kept.seconds
        )
    return Journal(folder=folder, key=text, began=now.astimezone(UTC))


def seconds(folder: Path) -> dict[str, float]:
    """How long each finished step of the night in ``folder`` took, while the night is not over."""
    kept = _read(folder / "journal.json", _Kept)
    return kept.seconds if kept else {}


def _write(path: Path, value: Last | _Kept) -> None:
    data = _adapter(type(value)).dump_python(value, mode="json")
    text = json.dumps(data, ensure_ascii=False, indent=1)
    files.write_text(path, encodable(text) + "\n")


def _read(path: Path, kind: type[T]) -> T | None:
    try:
        return _adapter(kind).validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, ValidationError):
        return None


def _adapter(kind: type[T]) -> TypeAdapter[T]:
    """The adapter of a type, which takes a while to make."""
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]
