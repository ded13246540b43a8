"""Machines that pull from a registry: what they are asked, and what is reported of them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from support.called_registry import called_registry
from support.docker import FakeDocker
from support.promoting import PATH, image, labels
from support.registry import FakeRegistry

from imagefactory.errors import CheckFailedError, Problem
from imagefactory.system.engine import RemoteEngine, RemoteError
from imagefactory.system.engine.remote import RemoteImage
from imagefactory.system.registry import Registries
from imagefactory.transport import pulling
from imagefactory.transport.distributing import TRIES
from imagefactory.transport.pulling import Stored


class Other(RemoteEngine):
    """An engine with a layer, that fails so often before it has what it pulls."""

    def __init__(self, host: str, failures: int = 0, *, transient: bool = True) -> None:
        super().__init__(host)
        self.failures, self.transient = failures, transient
        self.pulled, self.names = list[str](), list[str]()

    def find(self, digests: Sequence[str]) -> RemoteImage | None:
        return RemoteImage(digest=digests[0], names=()) if self.pulled else None

    def layers(self) -> set[str]:
        return {"sha256:base"}

    def pull_from_registry(self, reference: str, platform: str) -> None:
        if self.failures:
            self.failures -= 1
            problem = Problem(code="remote-engine", what="cut")
            raise RemoteError(problem, transient=self.transient)
        self.pulled += [reference, platform]

    def tag(self, source: str, target: str) -> None:  # noqa: ARG002
        self.names.append(target)


@pytest.fixture
def stored(tmp_path: Path) -> Stored:
    with called_registry() as registry:
        return read(registry)


def read(registry: FakeRegistry) -> Stored:
    digest = image(registry, labels("1"), "new")
    registry.put_image(PATH, "index", "linux/arm64", layers=[b"layer"])
    repository = f"{registry.address}/{PATH}"
    found = pulling.read(Registries(), repository, "new")
    assert (found.name, found.pinned) == (f"{repository}:new", f"{repository}@{digest}")
    with pytest.raises(CheckFailedError, match="the registry has no"):
        pulling.read(Registries(), repository, "old")
    index = pulling.read(Registries(), repository, "index")
    assert [*index.layers.values()] == [len(b"layer")]
    return found


def test_an_image_is_pulled_by_digest_and_costs_what_the_machine_lacks(stored: Stored) -> None:
    one = Other("one")
    first, again = (pulling.distribute([stored], ["one"], lambda _: one)[0] for _ in range(2))
    assert one.pulled == [stored.pinned, stored.image.platform]
    assert one.names == [stored.name, stored.name]
    assert sorted(stored.layers.values()) == [7, 1000]
    assert (first.bytes_sent, first.blobs_sent) == (7 + stored.small, 2)
    assert (str(first.state), str(again.state), again.bytes_sent) == ("sent", "there", 0)


def test_a_machine_that_fails_stops_no_other_and_a_cut_is_tried_again(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulling, "PAUSE", 0.0)
    engines = {
        "cut": Other("cut", TRIES),
        "gone": Other("gone", TRIES + 1),
        "full": Other("full", 1, transient=False),
        "good": Other("good"),
    }
    rows = pulling.distribute([stored], list(engines), engines.__getitem__)
    assert [str(row.state) for row in rows] == ["sent", "failed", "failed", "sent"]
    assert [len(row.problems) for row in rows] == [0, 1, 1, 0]
    assert engines["full"].failures == 0, "what stays wrong is not tried again"


def test_a_pull_that_broke_is_tried_again_at_once(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine forgets after some seconds what it has of it."""
    waited: list[float | None] = []

    def wait(_: object, seconds: float | None = None) -> bool:
        if seconds is not None:  # threads wait for each other, too
            waited.append(seconds)
        return seconds is None

    monkeypatch.setattr(threading.Event, "wait", wait)
    assert pulling.distribute([stored], ["cut"], lambda _: Other("cut", TRIES))[0].state == "sent"
    assert waited == [0, 1, 2, 3]


@pytest.mark.parametrize(("code", "tried"), [("remote-connection", 1), ("remote-engine", 3)])
def test_after_a_lost_connection_no_other_image_is_tried_there(
    stored: Stored, code: str, tried: int
) -> None:
    asked = list[object]()

    class Lost(Other):
        def find(self, digests: Sequence[str]) -> RemoteImage | None:
            asked.append(digests)
            raise RemoteError(Problem(code=code, what="one: No route to host"))

    images = [replace(stored, name=f"vllm:{number}") for number in range(3)]
    rows = pulling.distribute(images, ["one"], Lost)
    assert (len(asked), [str(row.state) for row in rows]) == (tried, ["failed"] * 3)
    assert [row.reference for row in rows] == ["vllm:0", "vllm:1", "vllm:2"]
    untried = [row.problems[0].what for row in rows[tried:]]
    assert untried == ["not tried, because vllm:0 failed"] * (3 - tried)


@pytest.mark.programs
def test_a_machine_may_be_named_by_its_ipv6_address(tmp_path: Path) -> None:
    docker = FakeDocker(tmp_path)
    docker.answer("--host ssh://me@[fd00::5] pull")
    other = RemoteEngine("me@fd00::5", binary=str(docker.program))
    other.pull_from_registry("ghcr.io/me/vllm@sha256:0", "linux/arm64")


def test_an_engine_that_has_something_else_then_is_an_error(stored: Stored) -> None:
    class Forgetful(Other):
        def find(self, digests: Sequence[str]) -> RemoteImage | None:  # noqa: ARG002
            return None

    (row,) = pulling.distribute([stored], ["x"], Forgetful)
    assert (str(row.state), row.problems[0].code) == ("failed", "distribute-other-digest")


@pytest.mark.programs
def test_the_account_of_this_machine_is_used_and_what_is_missing_is_said(tmp_path: Path) -> None:
    docker = FakeDocker(tmp_path)
    docker.answer(
        "--host ssh://me@spark1:2222 pull",
        err="Error: pull access denied for x, may require 'docker login'",
        code=1,
    )
    other = RemoteEngine("me@spark1:2222", binary=str(docker.program))
    with pytest.raises(RemoteError) as caught:
        other.pull_from_registry("ghcr.io/me/vllm@sha256:0", "linux/arm64")
    (problem,) = caught.value.problems
    assert (problem.code, problem.fix) == ("remote-access", "docker login ghcr.io, on this machine")
    assert not caught.value.transient
    (call,) = docker.calls
    assert "ssh://me@spark1:2222 pull --quiet --platform linux/arm64 ghcr.io/me/vllm@" in call
