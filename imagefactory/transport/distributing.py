"""Sends images to the engines of other machines; each gets only the blobs that it lacks.

The other engine pulls them by digest from a registry that is here (see ``server``) through the ssh
connection: so it asks for what it lacks, and takes nothing whose content is not what its digest
says. A large layer that has arrived is not sent again (see ``steps``). Nothing is installed there,
and the port is on the loopback address.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from imagefactory.errors import CheckFailedError, FactoryError, Problem, fail
from imagefactory.system import ui
from imagefactory.system.engine import RemoteEngine, RemoteError
from imagefactory.transport import steps
from imagefactory.transport.content import Content
from imagefactory.transport.server import PREFIX, Serving, serving

#: How often a connection may break in a row without a byte that was sent, and the seconds after
#: which it is tried again, which grow.
TRIES, PAUSE = 4, 1.0
#: Machines that are sent to at once.
AT_ONCE = 16
#: The names that images have while they are pulled, or after that was interrupted.
_BORROWED = re.compile(rf"127\.0\.0\.1:[0-9]+/{PREFIX}[0-9a-f]+@sha256:[0-9a-f]+")


class State(StrEnum):
    """What became of an image on another machine."""

    SENT = "sent"
    THERE = "there"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """One image on one machine.

    Attributes:
        host: the machine.
        reference: the image's tag.
        digest: what was to be there.
        state: whether it is there now, and was before.
        bytes_sent: of blobs and manifests, without what ssh adds.
        blobs_sent: how many of them.
        problems: why it failed.
    """

    host: str
    reference: str
    digest: str
    state: State
    bytes_sent: int = 0
    blobs_sent: int = 0
    problems: tuple[Problem, ...] = ()

    def as_dict(self) -> dict[str, object]:
        """The row as plain JSON values."""
        return {
            "host": self.host,
            "reference": self.reference,
            "digest": self.digest,
            "state": self.state,
            "bytes_sent": self.bytes_sent,
            "blobs_sent": self.blobs_sent,
            "errors": [problem.as_dict() for problem in self.problems],
        }


def distribute(
    images: Sequence[Content],
    hosts: Sequence[str],
    connect: Callable[[str], RemoteEngine] = RemoteEngine,
) -> tuple[Delivered, ...]:
    """Send ``images`` to all ``hosts`` at once; one that fails does not stop the others."""
    return on_all(hosts, connect, partial(_to_host, images=images))


def on_all(
    hosts: Sequence[str],
    connect: Callable[[str], RemoteEngine],
    one: Callable[..., Sequence[Delivered]],
) -> tuple[Delivered, ...]:
    """The rows of ``one(engine, stopped=EVENT)`` of all hosts at once; Ctrl-C sets the event."""
    engines = [connect(host) for host in hosts]
    stopped = threading.Event()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            found = list(pool.map(partial(one, stopped=stopped), engines))
        except BaseException:  # Ctrl-C ends the connections, and none is made again
            stopped.set()
            raise
    return tuple(row for rows in found for row in rows)


def _to_host(
    engine: RemoteEngine, *, images: Sequence[Content], stopped: threading.Event
) -> list[Delivered]:
    rows: list[Delivered] = []
    for image in images:
        with serving() as server:
            state, is_lost = State.FAILED, False
            problems: tuple[Problem, ...] = ()
            try:
                state = _deliver(engine, image, server, stopped)
            except FactoryError as error:
                problems = error.problems
                is_lost = isinstance(error, RemoteError)
        rows.append(_row(engine, image, state, problems, server.sent))
        if is_lost:
            break  # the others would fail as well
    untried, left = not_tried(rows[-1].reference), images[len(rows) :]
    return [*rows, *(_row(engine, one, State.FAILED, untried, {}) for one in left)]


def not_tried(failed: str) -> tuple[Problem, ...]:
    """Why nothing became of an image that came after ``failed``."""
    what = f"not tried, because {failed} failed"
    return (Problem(code="distribute-not-tried", what=what, fix="distribute again"),)


def _row(
    engine: RemoteEngine,
    image: Content,
    state: State,
    problems: tuple[Problem, ...],
    sent: Mapping[str, int],
) -> Delivered:
    return Delivered(
        host=engine.host,
        reference=image.name,
        digest=image.digest,
        state=state,
        bytes_sent=sum(sent.values()),
        blobs_sent=len(sent.keys() & image.blobs.keys() - image.manifests.keys()),
        problems=problems,
    )


def _deliver(
    engine: RemoteEngine, image: Content, server: Serving, stopped: threading.Event
) -> State:
    """Send an image, unless it is there, and give it its name."""
    state, found = State.THERE, engine.find(image.digests)
    if found is None:
        state = State.SENT
        ui.say(f"{engine.host}: sending {image.name}")
        for part in (*steps.of(image, engine.layers()), image):
            server.add(part)
            _pull(engine, part, server, stopped)
        found = engine.find(image.digests)
    if found is None or found.digest not in image.digests:
        raise fail(
            CheckFailedError,
            "distribute-other-digest",
            f"{engine.host} has no image {image.digest} after it was pulled",
            where=image.name,
            fix="look at the images there: docker image ls --digests",
        )
    if image.name not in found.names:
        engine.tag(found.digest, image.name)
    if state is State.SENT or any(map(_BORROWED.fullmatch, found.names)):
        # names of the steps, and of what was cut off; names of tagged images are not listed
        names = dict.fromkeys([*found.names, *engine.references()])
        borrowed = [name for name in names if _BORROWED.fullmatch(name)]
        if borrowed:
            engine.untag(borrowed)
    return state


def _pull(engine: RemoteEngine, image: Content, server: Serving, stopped: threading.Event) -> None:
    """Let the engine pull an image; a connection that breaks is made again."""
    tries = 0
    while True:
        before = server.sent.total()
        try:
            engine.pull(server.repository, image.digest, image.platform, server.port)
        except RemoteError as error:
            tries = 1 if server.sent.total() > before else tries + 1
            if not error.transient or tries >= TRIES or stopped.wait(PAUSE * tries):
                raise
            sent = ui.size(server.sent.total())
            ui.warn(f"{error.problems[0].what}: going on after {sent}")
        else:
            return
