"""Which engine is used, and what it says of itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.docker import FakeDocker

from imagefactory.errors import SetupError
from imagefactory.system.engine import Engine

pytestmark = pytest.mark.programs


def answering(docker: FakeDocker) -> None:
    docker.answer("version", out="26.1.5 linux/amd64\n")
    docker.answer("buildx version", out="github.com/docker/buildx 0.13.1\n")


def test_an_engine_names_its_versions_and_platform(engine: Engine, docker: FakeDocker) -> None:
    answering(docker)
    assert engine.alive()
    assert engine.version == ("26.1.5", "github.com/docker/buildx 0.13.1")
    assert engine.platform == "linux/amd64"
    assert len(docker.calls) == 2


def test_a_docker_without_buildx_is_no_engine(engine: Engine, docker: FakeDocker) -> None:
    docker.answer("version", out="26.1.5 linux/amd64\n")
    docker.answer("buildx", err="unknown command", code=1)
    assert not engine.alive()


def test_an_engine_of_another_architecture_cannot_make_images(
    engine: Engine, docker: FakeDocker
) -> None:
    docker.answer("version", out="26.1.5 linux/riscv64\n")
    docker.answer("buildx version", out="x")
    with pytest.raises(SetupError) as caught:
        _ = engine.platform
    assert caught.value.problems[0].code == "engine-platform"


def test_the_private_engine_is_used_where_the_machine_has_none(
    docker: FakeDocker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(SetupError) as caught:
        Engine.connect({}, tmp_path)
    assert caught.value.problems[0].code == "no-engine"
    docker.answer("--config /config --host unix:///x version", out="26.1.5 linux/amd64\n")
    docker.answer("--config /config --host unix:///x buildx version", out="0.13.1\n")
    known = {"docker": str(docker.program), "DOCKER_HOST": "unix:///x", "DOCKER_CONFIG": "/config"}
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "env.json").write_text(json.dumps(known))
    found = Engine.connect({"IMAGEFACTORY_ENGINE_DIR": str(tmp_path / "engine")}, Path("/none"))
    assert found.private
    assert found.environment == {"DOCKER_HOST": "unix:///x", "DOCKER_CONFIG": "/config"}


@pytest.mark.parametrize(
    ("security", "store", "shares", "has"),
    [
        ("[name=seccomp]", "[[driver-type io.containerd.snapshotter.v1]]", True, True),
        ("[name=seccomp name=rootless]", "[[Backing Filesystem extfs]]", False, False),
    ],
)
def test_an_engine_is_asked_once_where_it_runs_and_what_keeps_its_images(
    security: str,
    store: str,
    shares: bool,
    has: bool,
    engine: Engine,
    docker: FakeDocker,
    tmp_path: Path,
) -> None:
    docker.answer("info", out=f"{tmp_path}\n{security}\n{store}\n")
    assert engine.data_root == str(tmp_path)
    assert (engine.shares_loopback, engine.has_containerd_store) == (shares, has)
    assert len(docker.calls) == 1


def test_an_engine_that_does_not_answer_is_taken_for_one_elsewhere(
    engine: Engine, docker: FakeDocker
) -> None:
    docker.answer("info", err="Cannot connect", code=1)
    assert (engine.data_root, engine.has_containerd_store) == ("/", False)
