"""Reads BuildKit's progress (``--progress=rawjson``): what happens, per bake target. Pure."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

# "[cell stage 3/7] RUN ...": bake puts the target first, for every cell has linked targets (its
# base and builder).
_NAME = re.compile(r"^\[(?P<inside>[^\]]+)\] (?P<step>.*)$", re.DOTALL)
#: The part of a step in a status, without the digest that it may end with.
_DIGEST = re.compile(r" ?sha256:[0-9a-f]+")
_MOST_BYTES = 1 << 62


@dataclass(slots=True, eq=False)
class Step:
    """One vertex of the build graph; targets that share it share its progress.

    Attributes:
        target: the first target that announced it; None if it belongs to none.
        name: what it does, without the target.
        done: whether it ended well.
        over: whether it ended at all.
        current: bytes that were transferred so far.
        total: bytes to transfer; 0 if BuildKit does not say.
        part: what it is doing now, such as ``pushing layers``; empty if BuildKit does not say.
        seconds: how long it took, once it is done.
    """

    target: str | None
    name: str
    cached: bool = False
    done: bool = False
    over: bool = False
    error: str = ""
    canceled: bool = False
    current: int = 0
    total: int = 0
    part: str = ""
    seconds: float | None = None
    tallies: list[Tally] = field(default_factory=list)
    _parts: dict[str, tuple[int, int]] = field(default_factory=dict)

    def transferred(self, part: str, current: int, total: int) -> None:
        """Take the state of one of its transfers."""
        before = self._parts.get(part, (0, 0))
        self._parts[part] = current, total
        self.current += current - before[0]
        self.total += total - before[1]


@dataclass(slots=True, eq=False)
class Tally:
    """How far a target is: the steps that BuildKit announced for it so far.

    Attributes:
        known: steps, those of loading definitions and contexts left out.
        done: steps that ended, cached ones included.
        cached: steps that did not have to run.
        exported: whether its image, or what else it makes, was written.
        running: steps that have begun and not ended, oldest first.
        began: when its first step began (seconds since the epoch), if that is known.
        ended: when its last step ended.
    """

    known: int = 0
    done: int = 0
    cached: int = 0
    exported: bool = False
    running: dict[str, Step] = field(default_factory=dict)
    began: float | None = None
    ended: float | None = None

    @property
    def warm(self) -> bool:
        """Whether at least half of the steps came from the cache."""
        return 2 * self.cached >= self.known

    @property
    def seconds(self) -> float | None:
        """From the begin of its first step to the end of its last; None if that is not known."""
        if self.began is None or self.ended is None:
            return None
        return max(self.ended - self.began, 0.0)


@dataclass(slots=True)
class Event:
    """Something to show: a step began or ended, or wrote a log line."""

    target: str | None
    text: str
    log: bool = False
    step: Step | None = None


@dataclass(slots=True)
class Progress:
    """The state of a running bake; feed it lines, it gives events."""

    targets: tuple[str, ...]
    steps: dict[str, Step] = field(default_factory=dict)
    stray: list[str] = field(default_factory=list)
    tallies: dict[str, Tally] = field(default_factory=dict)
    _announced: set[tuple[str, str]] = field(default_factory=set)
    _open: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tallies = {target: Tally() for target in self.targets}

    def feed(self, line: str) -> Iterable[Event]:
        """Take one output line; lines that are not progress (bake's own messages) are kept in
        ``stray``.

        Buildx up to 0.13 writes each object over many lines, later ones write one a line; both end
        with a ``}`` in the first column or at the end of the line that opened the object.
        """
        if not self._open and not line.startswith("{"):
            if line.strip():
                self.stray.append(line.rstrip())
            return
        self._open.append(line)
        # parsing at every line would be quadratic, and a slow reader makes the engine give the
        # build up
        if not (line.startswith("}") or (len(self._open) == 1 and line.rstrip().endswith("}"))):
            return
        text = "".join(self._open)
        self._open.clear()
        try:
            status = json.loads(text)
        except (ValueError, RecursionError):
            self.stray.append(text.rstrip())
            return
        for vertex in _objects(status, "vertexes"):
            yield from self._vertex(vertex)
        for entry in _objects(status, "statuses"):
            self._status(entry)
        for entry in _objects(status, "logs"):
            step = self.steps.get(str(entry.get("vertex", "")))
            text = _decoded(entry.get("data")).rstrip()
            if text:
                yield Event(step.target if step else None, text, log=True)

    def failed(self) -> dict[str, str]:
        """Target (a cell or a shared stage) -> error of every step that failed by itself.

        Not by a cancellation.
        """
        bad = [step for step in self.steps.values() if step.error and not step.canceled]
        return {step.target: f"{step.name}: {step.error}" for step in bad if step.target}

    def _vertex(self, vertex: dict[str, Any]) -> Iterator[Event]:
        digest = str(vertex.get("digest", ""))
        step = self._step(digest, vertex)
        error, completed = str(vertex.get("error") or ""), bool(vertex.get("completed"))
        if error and not step.error:
            step.error, step.canceled = error, "context canceled" in error
            _end(step, digest)
            if not step.canceled:
                yield Event(step.target, f"FAILED {step.name}: {error}", step=step)
        elif completed and not step.done and not error:
            step.done, step.seconds = True, _seconds(vertex)
            _end(step, digest)
            word = "cached" if step.cached else "done"
            yield Event(step.target, f"{word} {step.name}", step=step)
        elif vertex.get("started") and not step.done and not completed:
            for tally in () if step.over else step.tallies:
                tally.running.setdefault(digest, step)
            yield Event(step.target, f"start {step.name}", step=step)

    def _step(self, digest: str, vertex: dict[str, Any]) -> Step:
        """The step of ``vertex``, counted for the target that announces it."""
        target, name, counts = self._split(str(vertex.get("name", "")))
        step = self.steps.get(digest)
        if step is None:
            step = self.steps[digest] = Step(target, name)
        tally = self.tallies.get(target or "") if counts else None
        if tally is not None:
            self._announce(tally, (target or "", digest), step)
            _clock(tally, vertex)
        if vertex.get("cached") and not step.cached:
            step.cached = True
            for one in step.tallies:
                one.cached += 1
        return step

    def _announce(self, tally: Tally, key: tuple[str, str], step: Step) -> None:
        """Count ``step`` for a target, once."""
        if key in self._announced:
            return
        self._announced.add(key)
        step.tallies.append(tally)
        tally.known += 1
        tally.cached += step.cached
        tally.done += step.over

    def _status(self, status: dict[str, Any]) -> None:
        step = self.steps.get(str(status.get("vertex", "")))
        if step is None:
            return
        part = str(status.get("id", ""))
        step.transferred(part, _bytes(status.get("current")), _bytes(status.get("total")))
        shown = _DIGEST.sub("", part).strip()
        if not status.get("completed"):
            step.part = shown
        elif step.part == shown:
            step.part = ""

    def _split(self, raw: str) -> tuple[str | None, str, bool]:
        """Target and name of a step, and whether it is one of the Dockerfile or an export."""
        found = _NAME.match(raw)
        if found is None:
            first, _, rest = raw.partition(" ")
            return (first, rest, True) if first in self.targets else (None, raw, False)
        target, _, stage = found["inside"].partition(" ")
        if stage in ("", "internal") or target == "internal":
            counts = stage == "" and target != "internal"
            return (None if target == "internal" else target), found["step"], counts
        return target, f"[{stage}] {found['step']}", True


def _end(step: Step, digest: str) -> None:
    if step.over:
        return
    step.over = True
    for tally in step.tallies:
        tally.running.pop(digest, None)
        tally.done += 1
        tally.exported |= step.done and step.name.startswith("exporting")


def _clock(tally: Tally, vertex: dict[str, Any]) -> None:
    began, ended = _time(vertex.get("started")), _time(vertex.get("completed"))
    if began is not None:
        tally.began = began if tally.began is None else min(tally.began, began)
    if ended is not None:
        tally.ended = ended if tally.ended is None else max(tally.ended, ended)


def _seconds(vertex: dict[str, Any]) -> float | None:
    began, ended = _time(vertex.get("started")), _time(vertex.get("completed"))
    return None if began is None or ended is None else max(ended - began, 0.0)


def _time(value: object) -> float | None:
    """Seconds since the epoch; None for what is no time stamp."""
    try:
        return datetime.fromisoformat(value).timestamp() if isinstance(value, str) else None
    except (ValueError, OverflowError, OSError):
        return None


def _bytes(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < _MOST_BYTES else 0


def _objects(status: object, key: str) -> Iterator[dict[str, Any]]:
    found = status.get(key) if isinstance(status, dict) else None
    for one in found if isinstance(found, list) else ():
        if isinstance(one, dict):
            yield one


def _decoded(data: object) -> str:
    """The text of a log entry; empty for what is not base64."""
    try:
        return base64.b64decode(data if isinstance(data, str) else "").decode(errors="replace")
    except ValueError:
        return ""
