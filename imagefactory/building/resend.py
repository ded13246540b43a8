"""Helps a builder that has half of a layer, because an earlier build was killed.

BuildKit cannot go on with a layer of an OCI layout that it received half of, and recognizes the
half by its digest.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from imagefactory.building.bases import LAYOUT
from imagefactory.building.stack.layout import name_of
from imagefactory.planning.cell_plan import ROOT
from imagefactory.system import locks, ui
from imagefactory.system.engine import Engine

#: What BuildKit 0.11 to 0.13 says when it has half of a layer of an OCI layout.
HALF_SENT = "unsupported offset"
#: How often layouts are sent again in one build: when one fails, others may not arrive whole.
_ATTEMPTS = 3


class Resend:
    """Sends the layouts that a bake file names again.

    The systems of builders get other digests, with the same content. The layers of an image keep
    theirs: the engine's own builder finds them when the engine has loaded them. With another
    builder (``engine`` is None) only the former is possible.
    """

    def __init__(self, file: Path, engine: Engine | None = None) -> None:
        self._file, self._engine, self._left = file, engine, _ATTEMPTS
        self._loaded = set[Path]()

    def helps(self, errors: Iterable[str]) -> bool:
        """Whether the bake that ended with ``errors`` is worth another try."""
        if not self._left or not any(HALF_SENT in error for error in errors):
            return False
        self._left -= 1
        ui.say("the builder has half of a layer, from a build that did not end: sending it again")
        targets = json.loads(self._file.read_text(encoding="utf-8"))
        renamed = _each(targets, _rename, lambda name: name == ROOT)
        loaded = _each(targets, self._load, lambda name: name != ROOT) if self._engine else False
        self._file.write_text(json.dumps(targets, indent=1) + "\n", encoding="utf-8")
        return renamed or loaded

    def end(self) -> None:
        """Remove the names of what was loaded; the images that were built have the layers."""
        for folder in self._loaded:
            if self._engine:
                self._engine.untag(name_of(folder))

    def _load(self, where: str) -> str | None:
        folder = _folder(where)
        if self._engine is None or folder in self._loaded:
            return None
        self._loaded.add(folder)
        self._engine.load(folder)
        return where


def _each(
    targets: dict[str, Any], change: Callable[[str], str | None], wanted: Callable[[str], bool]
) -> bool:
    """Exchange each layout of the contexts that are ``wanted``; whether there was one."""
    done: dict[str, str | None] = {}
    for target in targets["target"].values():
        named = target.get("contexts", {})
        for name, where in named.items():
            if where.startswith(LAYOUT) and wanted(name):
                if where not in done:
                    done[where] = change(where)
                named[name] = done[where] or where
    return any(done.values())


def _rename(where: str) -> str:
    """Give the system in a layout another digest."""
    from imagefactory.building.debian import layout  # noqa: PLC0415 - only after a failure

    folder = _folder(where)
    with locks.held(folder.with_name(f"{folder.name}.lock"), "a base"):
        return f"{LAYOUT}{folder}@{layout.rewrap(folder)}"


def _folder(where: str) -> Path:
    return Path(where.removeprefix(LAYOUT).rpartition("@")[0])
