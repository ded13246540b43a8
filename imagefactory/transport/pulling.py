"""Lets the engines of other machines pull images from a registry, each only what it lacks.

Docker's client on this machine asks the other engine over ssh, and sends along the account that
``docker login`` has kept here: no secret is stored there. The image is named by digest, so the
engine takes nothing else.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from imagefactory.errors import CheckFailedError, FactoryError, Problem, fail
from imagefactory.publishing import vouching
from imagefactory.publishing.vouching import Image
from imagefactory.system import ui
from imagefactory.system.engine import LOST, RemoteEngine, RemoteError
from imagefactory.system.registry import Registries
from imagefactory.transport.distributing import PAUSE, TRIES, Delivered, State, not_tried, on_all


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """An image in a registry, and what it consists of.

    Attributes:
        name: what it is called on other machines: with its tag, if it was named by one.
        image: what the registry has.
        layers: bytes of its compressed layers, by the digests of the unpacked ones.
        small: bytes of its manifests and configuration.
    """

    name: str
    image: Image
    layers: Mapping[str, int]
    small: int

    @property
    def pinned(self) -> str:
        """Its name by digest."""
        return f"{self.image.repository}@{self.image.digest}"

    @property
    def digests(self) -> tuple[str, ...]:
        """Those by which an engine may know it; one without containerd's store uses the second."""
        return tuple(filter(None, (self.image.digest, self.image.config)))


def read(registries: Registries, repository: str, wanted: str) -> Stored:
    """What a registry has under a tag or digest. Raises CheckFailedError if that is nothing."""
    image = vouching.read_image(registries, repository, wanted)
    name = f"{repository}{'@' if ':' in wanted else ':'}{wanted}"
    if image is None:
        fix = "imagefactory history lists what is there; imagefactory push sends an image there"
        what = f"the registry has no {name}"
        raise fail(CheckFailedError, "distribute-missing", what, fix=fix)
    found = registries.manifest(f"{repository}@{image.digest}")
    small = found.size if found else 0
    if found and found.config is None:
        parts = [one for one in found.manifests if one.platform == image.platform]
        found = registries.manifest(f"{repository}@{parts[0].digest}") if parts else None
        small += found.size if found else 0
    data = registries.read_blob(repository, image.config) if image.config else None
    try:
        diffs = [str(one) for one in json.loads(data or b"")["rootfs"]["diff_ids"]]
        sizes = [layer.size for layer in found.layers] if found else []
        layers = dict(zip(diffs, sizes, strict=True))
    except (ValueError, KeyError, TypeError, RecursionError):
        what = f"{name} is no image that can be read"
        raise fail(CheckFailedError, "distribute-missing", what, fix="push it again") from None
    return Stored(name=name, image=image, layers=layers, small=small + len(data or b""))


def distribute(
    images: Sequence[Stored],
    hosts: Sequence[str],
    connect: Callable[[str], RemoteEngine] = RemoteEngine,
) -> tuple[Delivered, ...]:
    """Let all ``hosts`` pull ``images`` at once; one that fails does not stop the others."""
    return on_all(hosts, connect, partial(_on_host, images=images))


def _on_host(
    engine: RemoteEngine, *, images: Sequence[Stored], stopped: threading.Event
) -> list[Delivered]:
    rows: list[Delivered] = []
    for image in images:
        rows.append(_delivered(engine, image, stopped))
        if any(problem.code == LOST for problem in rows[-1].problems):
            break  # the others would wait for it as long
    untried, left = not_tried(rows[-1].reference), images[len(rows) :]
    return [*rows, *(_row(engine, one, State.FAILED, (0, 0), untried) for one in left)]


def _delivered(engine: RemoteEngine, image: Stored, stopped: threading.Event) -> Delivered:
    state, lacked = State.FAILED, (0, 0)
    problems: tuple[Problem, ...] = ()
    try:
        found = engine.find(image.digests)
        if found is None:
            lacked = _lacked(engine, image)
            ui.say(f"{engine.host}: pulling {image.name}, {ui.size(lacked[0])}")
            _pull(engine, image, stopped)
            found = engine.find(image.digests)
            state = State.SENT
        else:
            state = State.THERE
        if found is None:
            state = State.FAILED
            what = f"{engine.host} has no image {image.image.digest} after it was pulled"
            fix = "look at the images there: docker image ls --digests"
            raise fail(CheckFailedError, "distribute-other-digest", what, fix=fix)
        if "@" not in image.name and image.name not in found.names:
            engine.tag(found.digest, image.name)
    except FactoryError as error:
        state, problems = State.FAILED, error.problems
    return _row(engine, image, state, lacked, problems)


def _row(
    engine: RemoteEngine,
    image: Stored,
    state: State,
    lacked: tuple[int, int],
    problems: tuple[Problem, ...],
) -> Delivered:
    return Delivered(
        host=engine.host,
        reference=image.name,
        digest=image.image.digest,
        state=state,
        bytes_sent=lacked[0] if state is State.SENT else 0,
        blobs_sent=lacked[1] if state is State.SENT else 0,
        problems=problems,
    )


def _lacked(engine: RemoteEngine, image: Stored) -> tuple[int, int]:
    """Bytes and number of the blobs that the engine lacks, by the layers that it has."""
    there = engine.layers()
    sizes = [size for layer, size in image.layers.items() if layer not in there]
    return sum(sizes) + image.small, len(sizes) + 1


def _pull(engine: RemoteEngine, image: Stored, stopped: threading.Event) -> None:
    # at once for the first time: an engine forgets after some seconds what it has of a failed pull
    for failed in range(TRIES + 1):
        try:
            engine.pull_from_registry(image.pinned, image.image.platform)
        except RemoteError as error:
            if not error.transient or failed == TRIES or stopped.wait(PAUSE * failed):
                raise
            ui.warn(f"{error.problems[0].what}: trying again")
        else:
            return
