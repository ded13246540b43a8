"""Layers are handed to the engine while others are made: what it pulls, and what it keeps of it."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
from support.plans import planned

from imagefactory.building import ahead, loopback
from imagefactory.building.ahead import Ahead
from imagefactory.building.blob import TYPE, Blob
from imagefactory.building.loopback import Loopback
from imagefactory.errors import SetupError, fail
from imagefactory.system.engine import Engine

CELL = planned().cell
SECONDS = 20


class Puller(Engine):
    """An engine that notes what it is to pull, and begins when it may."""

    def __init__(self, left: list[str]) -> None:
        super().__init__()
        self.left = left
        self.pulls, self.removed = list[str](), list[list[str]]()
        self.may, self.began, self.works = threading.Event(), threading.Event(), True

    def pull(self, ref: str, platform: str, cancelled: threading.Event) -> bool:
        assert platform == CELL.platform
        self.pulls.append(ref)
        self.began.set()
        while not self.may.is_set() and not cancelled.wait(0.001):
            pass
        return self.works and not cancelled.is_set()

    def by_digest(self, pattern: str) -> list[str]:
        assert pattern == "127.0.0.1:*/*/*-growing"
        return self.left

    def untag_all(self, refs: list[str]) -> None:  # type: ignore[override]
        self.removed.append(refs)


@pytest.fixture
def engine() -> Puller:
    return Puller([])


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Loopback]:
    with loopback.serving(tmp_path / "layouts") as made:
        yield made


@pytest.fixture
def layers(tmp_path: Path) -> list[Blob]:
    """Three of them, not compressed."""
    found = []
    for text in ("base", "torch", "vllm"):
        path, digest = tmp_path / text, f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
        path.write_text(text)
        size = len(text)
        found.append(Blob(digest=digest, size=size, media_type=TYPE, diff_id=digest, path=path))
    return found


def manifest(ref: str) -> list[str]:
    """The layers of an image, as the registry says."""
    host, _, rest = ref.partition("/")
    name, _, digest = rest.partition("@")
    with urlopen(f"http://{host}/v2/{name}/manifests/{digest}", timeout=SECONDS) as answer:
        return [row["digest"] for row in json.load(answer)["layers"]]


def test_the_engine_pulls_the_newest_image_there_is_and_keeps_no_name(
    engine: Puller, registry: Loopback, layers: list[Blob]
) -> None:
    with ahead.handing(engine, registry) as made:
        made.take(CELL, [])
        made.take(CELL, layers[:1])
        assert engine.began.wait(SECONDS)
        (first,) = engine.pulls
        assert manifest(first) == [layers[0].digest]
        made.take(CELL, layers[:2])
        made.take(CELL, layers)
        engine.may.set()
        made.wait()
        first, last = engine.pulls
        assert manifest(last) == [one.digest for one in layers]
        assert engine.removed == [[first]]
        assert first.startswith(f"{registry.prefix}/{CELL.name}-growing@sha256:")
    assert engine.removed == [[first], [last]]
    assert not list(registry.output.iterdir())


def test_nothing_is_pulled_after_a_pull_that_failed(
    engine: Puller, registry: Loopback, layers: list[Blob]
) -> None:
    engine.works = False
    engine.may.set()
    with ahead.handing(engine, registry) as made:
        for count in (1, 2):
            made.take(CELL, layers[:count])
            made.wait()
        assert len(engine.pulls) == 1
    assert engine.removed == [[]]


def test_a_pull_ends_with_a_build_that_is_interrupted(
    engine: Puller, registry: Loopback, layers: list[Blob]
) -> None:
    def build() -> None:
        with ahead.handing(engine, registry) as made:
            made.take(CELL, layers)
            assert engine.began.wait(SECONDS)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build()
    assert engine.removed == [[]]


def test_an_engine_that_is_gone_does_not_hide_why_a_build_ended(
    engine: Puller, registry: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(_: str) -> list[str]:
        raise fail(SetupError, "engine-failed", "docker image: killed by SIGINT")

    monkeypatch.setattr(engine, "by_digest", gone)
    with pytest.raises(KeyboardInterrupt), ahead.handing(engine, registry):
        raise KeyboardInterrupt


def test_names_that_a_killed_build_left_are_removed_and_no_others(
    engine: Puller, registry: Loopback
) -> None:
    alive = registry.prefix.partition("/")[0]
    secret, digest = "0" * 16, f"sha256:{'a' * 64}"
    dead = f"127.0.0.1:1/{secret}/cell-growing@{digest}"
    engine.left = [
        dead,
        f"{alive}/{secret}/cell-growing@{digest}",
        f"127.0.0.1:1/{secret}/cell@{digest}",
        f"127.0.0.1:1/team/cell-growing@{digest}",
    ]
    Ahead(engine, registry).end()
    assert engine.removed == [[dead]]
