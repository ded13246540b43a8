"""Two nodes of a cluster, whose engines are stand-ins, and the commands that use them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from subprocess import Popen

import pytest

from imagefactory.cluster import cluster as clusters
from imagefactory.cluster import declaration, running
from imagefactory.cluster.cluster import Member
from imagefactory.commands import cluster as command
from imagefactory.errors import CheckFailedError, SetupError, fail
from imagefactory.examples import examples
from imagefactory.system import shell
from imagefactory.system.engine import Engine, ImageInfo, Service
from support.program import Run

REF = "imagefactory/vllm:gb10"
IMAGE = ImageInfo(
    ref=REF,
    digest="sha256:a",
    layers=("sha256:1",),
    platform="linux/arm64",
    labels={},
    env={},
    size=1,
)


class Node(Engine):
    """An engine that knows one image; ``later`` changes a container each time it is looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.image: ImageInfo | None = IMAGE
        self.found: dict[str, Service] = {}
        self.done: list[str] = []
        self.later: Callable[[Service], Service | None] = lambda one: replace(one, health="healthy")
        self.off = self.writes_no_log = False
        self.writes = "echo last $1"

    def find_images(self, refs: Iterable[str]) -> dict[str, ImageInfo]:
        self._answer()
        return {ref: self.image for ref in refs if self.image and ref == REF}

    def services(self, label: str) -> list[Service]:
        self._answer()
        name, _, value = label.partition("=")
        return [one for one in self.found.values() if one.labels.get(name) == value]

    def service(self, name: str) -> Service | None:
        self._answer()
        if found := self.found.get(name):
            changed = self.later(found)
            self.found |= {name: changed} if changed else {}
            return changed
        return None

    def start_service(self, arguments: Sequence[str]) -> str:
        words = list(arguments)
        name = words[words.index("--name") + 1]
        labels = [words[n + 1] for n, word in enumerate(words) if word == "--label"]
        if name in self.found:
            raise fail(CheckFailedError, "container-name", "docker: the name is taken")
        self.done.append(f"start {name}")
        self.found[name] = container(name, dict(label.split("=", 1) for label in labels))
        return self.found[name].id

    def fill_volume(self, name: str, image: str, files: Mapping[str, str]) -> None:
        assert image == REF
        self.done.append(f"fill {name} with {' '.join(files)}")

    def stop_service(self, container: str) -> None:
        self.done.append(f"stop {container}")
        self.found[container] = replace(self.found[container], state="exited", code=0)

    def remove_service(self, container: str) -> None:
        self.done.append(f"remove {container}")
        del self.found[container]

    def service_log(self, container: str, *, last: int | None, since: str = "") -> str:
        self._answer()
        if self.writes_no_log:
            raise fail(SetupError, "engine-failed", "docker: No route to host")
        lines = [f"line 1 of {container}", "ValueError: planted"] if container in self.found else []
        if since:
            lines.append(f"since {since}")
        return "\n".join(lines[-last:] if last else lines)

    def follow_service_log(
        self, container: str, *, last: int | None, since: str = ""
    ) -> AbstractContextManager[Popen[str]]:
        assert container in self.found
        return shell.stream(["sh", "-c", self.writes, "sh", f"{last}{since}"], quiet=True)

    def _answer(self) -> None:
        if self.off:
            raise fail(SetupError, "engine-failed", "docker: No route to host")


def container(name: str, labels: dict[str, str]) -> Service:
    return Service(
        id=name,
        name=name,
        labels=labels,
        image="sha256:a",
        state="running",
        code=0,
        out_of_memory=False,
        health="starting",
        since="2026-11-22T10:00:00.5Z",
    )


def ended(
    code: int, since: str = "2026-11-22T11", *, killed: bool = False
) -> Callable[[Service], Service]:
    return lambda one: replace(one, state="exited", code=code, since=since, out_of_memory=killed)


class Two:
    """Two nodes and their engines."""

    def __init__(self, members: Sequence[Member]) -> None:
        self.members = members
        self.nodes = {member.node.host: Node() for member in members}
        self.head, self.worker = self.nodes.values()

    def of(self, host: str) -> Engine:
        return self.nodes[host]

    def up(self, timeout: float = 60) -> list[running.Seen]:
        return running.up(self.members, self.of, timeout=timeout)

    def done(self) -> list[list[str]]:
        """What each engine has done since the last call."""
        found = [node.done[:] for node in self.nodes.values()]
        for node in self.nodes.values():
            node.done.clear()
        return found


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Two:
    monkeypatch.setattr(running, "POLL", 0)
    monkeypatch.setattr(running, "REPORT", 0)
    path = tmp_path / "cluster.yaml"
    path.write_text(examples.cluster())
    return Two(clusters.members(declaration.load(path), REF))


@pytest.fixture
def call(two: Two, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(command, "_engine_of", two.of)
    return lambda *words: run("cluster", *words, cwd=tmp_path)
