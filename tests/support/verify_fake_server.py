"""A fake vLLM server on sockets, in what seems to be a container."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from imagefactory.system.engine import Engine, RunningContainer
from imagefactory.system.engine.docker import Docker
from imagefactory.verifying import server
from imagefactory.verifying.models.dialog import THINK
from imagefactory.verifying.models.models import family
from support.liar import Behaviour, FakeServer

QUICK = server.Patience(start=1.5, answer=0.5, stop=1, poll=0.02)
MODEL = server.MODEL
COMPLETED = (*MODEL.completions, *MODEL.at_once)
CHATS = (*MODEL.chats, *MODEL.reasoning, *MODEL.calls)
#: What the models of the family are asked that do not think.
PLAIN = tuple(one for one in family() if one is not MODEL)
PLAIN_COMPLETED = tuple(asked for one in PLAIN for asked in (*one.completions, *one.at_once))
PLAIN_CHATS = tuple(asked for one in PLAIN for asked in one.chats)


class FakeContainer(RunningContainer):
    """The container that the fake server seems to run in."""

    def __init__(self, behaviour: Behaviour, *, plain: bool = False) -> None:
        super().__init__(Docker(), id="c0ffee")
        self.behaviour = behaviour
        known = (PLAIN_COMPLETED, PLAIN_CHATS) if plain else (COMPLETED, CHATS)
        self.server = FakeServer(behaviour, *known)
        self.attached: list[Sequence[str]] = []
        self.removed = False

    def logs(self, *, last: int | None = None, most: int = 1 << 20) -> str:
        lines = self.behaviour.log.splitlines(keepends=True)
        return "".join(lines if last is None else lines[-last:])[:most]

    def alive(self) -> bool:
        return self.behaviour.alive

    def ran_out_of_memory(self) -> bool:
        return self.behaviour.out_of_memory

    @contextmanager
    def attach(self, argv: Sequence[str]) -> Iterator[socket.socket]:
        self.attached.append(argv)
        ours, theirs = socket.socketpair()
        threading.Thread(target=self.server.serve, args=(theirs,), daemon=True).start()
        with ours:
            yield ours

    def stop(self, timeout: float) -> int:  # noqa: ARG002
        return self.behaviour.exit_code

    def remove(self) -> None:
        self.removed = True


class FakeEngine(Engine):
    """Starts the fake server instead of a container."""

    def __init__(self) -> None:
        super().__init__()
        self.behaviour = Behaviour()
        self.container = FakeContainer(self.behaviour)
        self.started: dict[str, Any] = {}
        self.starts: list[dict[str, Any]] = []

    @property
    def version(self) -> tuple[str, str]:
        return "27.5.1", ""

    @contextmanager
    def volume(self) -> Iterator[str]:
        yield "compiled"

    def start(self, image: str, argv: Sequence[str], **options: Any) -> FakeContainer:
        (mount,) = options["mounts"]
        files = sorted(path.name for path in mount[0].iterdir())
        started = {"image": image, "argv": argv, "files": files, **options}
        self.started = started
        self.starts.append(started)
        if THINK in (mount[0] / "tokenizer.json").read_text():
            return self.container
        return FakeContainer(self.behaviour, plain=True)
