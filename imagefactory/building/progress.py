"""Reads BuildKit's progress (``--progress=rawjson``) and tells, per bake target.

What happens and what failed. Pure.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

# "[cell stage 3/7] RUN ...": bake puts the target first, for every cell has linked targets (its
# base and builder).
_NAME = re.compile(r"^\[(?P<inside>[^\]]+)\] (?P<step>.*)$", re.DOTALL)


@dataclass(slots=True)
class Step:
    """One vertex of the build graph."""

    target: str | None
    name: str
    cached: bool = False
    done: bool = False
    error: str = ""
    canceled: bool = False


@dataclass(slots=True)
class Event:
    """Something to show: a step began or ended, or wrote a log line."""

    target: str | None
    text: str
    log: bool = False


@dataclass(slots=True)
class Progress:
    """What is known of a running bake; feed it lines, it gives events."""

    targets: tuple[str, ...]
    steps: dict[str, Step] = field(default_factory=dict)
    stray: list[str] = field(default_factory=list)
    _open: list[str] = field(default_factory=list)

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
        except ValueError:
            self.stray.append(text.rstrip())
            return
        for vertex in status.get("vertexes") or ():
            yield from self._vertex(vertex)
        for entry in status.get("logs") or ():
            step = self.steps.get(entry.get("vertex", ""))
            text = base64.b64decode(entry.get("data") or "").decode(errors="replace").rstrip()
            if text:
                yield Event(step.target if step else None, text, log=True)

    def failed(self) -> dict[str, str]:
        """Target (a cell or a shared stage) -> error of every step that failed by itself.

        Not by a cancellation.
        """
        bad = [step for step in self.steps.values() if step.error and not step.canceled]
        return {step.target: f"{step.name}: {step.error}" for step in bad if step.target}

    def _vertex(self, vertex: dict[str, object]) -> Iterable[Event]:
        digest, raw = str(vertex.get("digest", "")), str(vertex.get("name", ""))
        step = self.steps.get(digest)
        if step is None:
            target, name = self._split(raw)
            step = self.steps[digest] = Step(target, name)
        error = str(vertex.get("error") or "")
        if vertex.get("cached") and not step.cached:
            step.cached = True
        if error and not step.error:
            step.error, step.canceled = error, "context canceled" in error
            if not step.canceled:
                yield Event(step.target, f"FAILED {step.name}: {error}")
        elif vertex.get("completed") and not step.done and not error:
            step.done = True
            yield Event(step.target, f"{'cached' if step.cached else 'done'} {step.name}")
        elif vertex.get("started") and not step.done and not vertex.get("completed"):
            yield Event(step.target, f"start {step.name}")

    def _split(self, raw: str) -> tuple[str | None, str]:
        found = _NAME.match(raw)
        if found is None:
            first, _, rest = raw.partition(" ")
            return (first, rest) if first in self.targets else (None, raw)
        target, _, place = found["inside"].partition(" ")
        if place in ("", "internal") or target == "internal":
            return (None if target == "internal" else target), found["step"]
        return target, f"[{place}] {found['step']}"
