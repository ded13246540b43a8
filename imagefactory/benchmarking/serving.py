"""A server for the time of a benchmark: a container that is gone afterwards, however that ends."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from imagefactory.errors import CheckFailedError, Problem
from imagefactory.launching import docker
from imagefactory.launching.launching import Launch, Port
from imagefactory.system import web
from imagefactory.system.engine import Engine, RunningContainer

#: Seconds between two questions whether it is healthy, and between two lines about the wait.
POLL, QUIET = 1.0, 60.0
#: Lines of the log that an error shows.
LINES = 25
Say = Callable[[str], None]


@contextmanager
def served(engine: Engine, launch: Launch, *, seconds: float, say: Say) -> Iterator[str]:
    """The address of a server, as soon as it is healthy; the container is removed afterwards.

    It has a port of its own at 127.0.0.1. Raises CheckFailedError if it ends, or is not healthy
    within ``seconds``, with the last lines of its log.
    """
    inside = launch.ports[0].container
    port = Port(host=_free_port(), container=inside)

    def words(name: str, labels: Mapping[str, str]) -> Sequence[str]:
        named = {**launch.labels, **labels}
        return docker.arguments(replace(launch, name=name, labels=named, ports=(port,)))

    url = f"http://{port.address}:{port.host}"
    with engine.lent(words) as container:
        _wait(container, url, time.monotonic() + seconds, say)
        yield url


def _wait(container: RunningContainer, url: str, end: float, say: Say) -> None:
    began = said = time.monotonic()
    while web.text_of(f"{url}/health") is None:
        if not container.alive():
            raise _failed(f"the server ended with exit status {container.exit_code()}", container)
        now = time.monotonic()
        if now > end:
            raise _failed(f"the server was not healthy after {now - began:.0f} s", container)
        if now - said > QUIET:
            said = now
            say(f"not healthy after {now - began:.0f} s: {container.logs(last=1).strip():.100}")
        time.sleep(POLL)
    say(f"healthy after {time.monotonic() - began:.0f} s")


def _failed(what: str, container: RunningContainer) -> CheckFailedError:
    fix = "see its last lines; imagefactory recipe run starts it to stay"
    detail = container.logs(last=LINES).rstrip()
    return CheckFailedError(Problem(code="bench-not-served", what=what, fix=fix, detail=detail))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
