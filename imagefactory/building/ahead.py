"""Hands layers to the engine while others are still made.

The engine unpacks the layers of an image one after the other, which takes about as long as making
them does. Without this it would begin when the image is finished, and the processors would wait
half of the time: for downloads first, then for the engine. So the engine pulls an image that grows:
whenever a layer was made, one with the layers up to that.
"""

from __future__ import annotations

import re
import shutil
import socket
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from imagefactory.building.blob import Blob
from imagefactory.building.loopback import Loopback
from imagefactory.building.stack import layout
from imagefactory.errors import SetupError
from imagefactory.matrix.cell import Cell
from imagefactory.system import ui
from imagefactory.system.background import in_background
from imagefactory.system.engine import Engine

#: How the repositories of such images end, and the names that the engine gives them.
SUFFIX = "-growing"
_NAME = re.compile(rf"127\.0\.0\.1:(\d+)/[0-9a-f]{{16}}/[^/]+{SUFFIX}@sha256:[0-9a-f]{{64}}")


class Ahead:
    """Pulls of images that grow, of which ``registry`` has the layouts.

    One pull is made at a time, of the newest image that there is then. After one that fails there
    are no others: the builder fetches what is missing, and says what is wrong.
    """

    def __init__(self, engine: Engine, registry: Loopback) -> None:
        self._engine, self._registry = engine, registry
        self._pool, self._ended = ThreadPoolExecutor(1), threading.Event()
        self._newest: dict[str, int] = {}
        self._names: dict[str, str] = {}
        self._left = in_background(engine.by_digest, f"127.0.0.1:*/*/*{SUFFIX}")

    def take(self, cell: Cell, layers: Sequence[Blob]) -> None:
        """Let the engine have ``layers``, which are more than before, as soon as it can."""
        if layers:
            self._newest[cell.name] = len(layers)
            self._pool.submit(self._pull, cell, tuple(layers))

    def wait(self) -> None:
        """Wait until the engine has what it was given."""
        done = self._pool.submit(bool)
        if not done.done() and self._newest:
            with ui.step("the engine unpacks the last layers"):
                done.result()

    def end(self) -> None:
        """End a pull, and remove the names of what was pulled, here or in a build that was killed.

        Their layers remain if they are in an image that was built.
        """
        self._ended.set()
        self._pool.shutdown()
        with suppress(SetupError):  # what ended the build says more
            left = [name for name in self._left.result() if _is_left(name)]
            self._engine.untag_all([*self._names.values(), *left])
        for name in self._newest:
            shutil.rmtree(self._registry.output / f"{name}{SUFFIX}", ignore_errors=True)

    def _pull(self, cell: Cell, layers: Sequence[Blob]) -> None:
        if self._ended.is_set() or len(layers) < self._newest[cell.name]:
            return
        folder: Path = self._registry.output / f"{cell.name}{SUFFIX}"
        platform = {"os": "linux", "architecture": cell.platform.arch}
        name = self._registry.address(f"{folder}@{layout.write(folder, layers, platform)}")
        if not self._engine.pull(name, cell.platform, self._ended):
            self._ended.set()
            return
        before = self._names.get(cell.name)
        self._names[cell.name] = name
        if before:
            self._engine.untag_all([before])


@contextmanager
def handing(engine: Engine, registry: Loopback) -> Iterator[Ahead]:
    """Pulls that end, at the latest, with the block."""
    ahead = Ahead(engine, registry)
    try:
        yield ahead
    finally:
        ahead.end()


def _is_left(name: str) -> bool:
    """Whether ``name`` was pulled from a registry that is gone."""
    found = _NAME.fullmatch(name)
    if not found:
        return False
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", int(found[1]))) != 0
