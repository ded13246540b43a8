"""Images in the engine: found, described, named, pushed."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import stamina
from support.docker import FakeDocker

from imagefactory.errors import CheckFailedError, SetupError
from imagefactory.system.engine import Engine, ImageInfo

pytestmark = pytest.mark.programs

DIGEST = "sha256:" + "a" * 64
MISSING = "Error response from daemon: No such image: gone:1\n"
DEAD = "Cannot connect to the Docker daemon at unix:///x. Is the docker daemon running?\n"


def row(name: str = "made:1", **changes: Any) -> dict[str, Any]:
    """What `docker image inspect` says of an image."""
    config = {"Env": ["A=b=c"], "Labels": {"cell": "gb10"}}
    made = {
        "Id": DIGEST,
        "RepoTags": [name],
        "Created": "2026-11-22T00:32:54.44097969Z",
        "Os": "linux",
        "Architecture": "arm64",
        "Size": 7,
        "Config": config,
        "RootFS": {"Type": "layers", "Layers": ["sha256:1", "sha256:2"]},
    }
    return {**made, **changes}


def described(ref: str) -> ImageInfo:
    return ImageInfo(
        ref=ref,
        digest=DIGEST,
        layers=("sha256:1", "sha256:2"),
        platform="linux/arm64",
        labels={"cell": "gb10"},
        env={"A": "b=c"},
        size=7,
    )


def test_one_image_and_many_are_described_alike(engine: Engine, docker: FakeDocker) -> None:
    docker.answer("image inspect", out=json.dumps([row()]))
    assert engine.inspect_image("made:1") == described("made:1")
    assert engine.find_images(["made:1"]) == {"made:1": described("made:1")}


def test_an_image_without_labels_and_environment_is_described(
    engine: Engine, docker: FakeDocker
) -> None:
    docker.answer(
        "image inspect", out=json.dumps([row(Config={"Env": None, "Labels": None}, RootFS={})])
    )
    for found in (engine.inspect_image("made:1"), engine.find_images(["made:1"])["made:1"]):
        assert (found.labels, found.env, found.layers) == ({}, {}, ())


def test_an_image_is_looked_up_once(engine: Engine, docker: FakeDocker) -> None:
    docker.answer("image inspect", out=json.dumps([row()]))
    engine.inspect_image("made:1")
    assert docker.calls == ["image inspect made:1"]


def test_of_many_images_those_that_exist_are_found_by_name_and_by_digest(
    engine: Engine, docker: FakeDocker
) -> None:
    docker.answer("image inspect", out=json.dumps([row()]), err=MISSING, code=1)
    found = engine.find_images(["made:1", "gone:1", DIGEST, "made:1"])
    assert found == {"made:1": described("made:1"), DIGEST: described(DIGEST)}
    assert len(docker.calls) == 3  # a process for each part of them
    assert engine.find_images([]) == {}


def test_an_engine_that_does_not_answer_is_not_one_without_images(
    engine: Engine, docker: FakeDocker
) -> None:
    docker.answer("", out="[]\n", err=DEAD, code=1)
    for ask in (
        lambda: engine.find_images(["made:1"]),
        lambda: engine.names("made"),
        lambda: engine.inspect_image("made:1"),
        lambda: engine.untag("made:1"),
        lambda: engine.tag("made:1", "made:2"),
        lambda: engine.is_unpacked("made:1"),
        engine.used_images,
        lambda: engine.read_file("made:1", "/x"),
    ):
        with pytest.raises(SetupError) as caught:
            ask()
        (problem,) = caught.value.problems
        assert problem.code == "engine-failed"
        assert "Cannot connect to the Docker daemon" in problem.what


def test_whichever_client_asks_an_image_that_is_gone_is_one_error(
    engine: Engine, docker: FakeDocker
) -> None:
    docker.answer("", err=MISSING, code=1)
    for ask in (
        lambda: engine.inspect_image("gone:1"),
        lambda: engine.tag("gone:1", "made:2"),
        lambda: engine.is_unpacked("gone:1"),
        lambda: engine.read_file("gone:1", "/x"),
        lambda: engine.export("gone:1").__enter__(),
        lambda: engine.start("gone:1", (), platform="linux/arm64"),
    ):
        with pytest.raises(CheckFailedError) as caught:
            ask()
        (problem,) = caught.value.problems
        assert (problem.code, problem.what) == ("image-missing", "the engine has no image gone:1")


def test_a_missing_client_is_the_machines_fault(docker: FakeDocker) -> None:
    nowhere = Engine(binary=str(docker.program.with_name("no-docker")))
    with pytest.raises(SetupError):
        nowhere.inspect_image("made:1")
    with pytest.raises(SetupError):
        nowhere.find_images(["made:1"])
    assert not nowhere.alive()


def test_a_name_that_is_gone_already_is_no_error(engine: Engine, docker: FakeDocker) -> None:
    docker.answer("image rm --no-prune gone:1", err=MISSING, code=1)
    engine.untag("gone:1")


@pytest.mark.parametrize(("failures", "listed"), [(4, True), (5, False)])
def test_images_are_listed_again_while_the_engine_removes_one(
    engine: Engine, docker: FakeDocker, failures: int, listed: bool
) -> None:
    gone = "Error response from daemon: snapshot sha256:89b1 does not exist: not found"
    docker.answer("image ls", err=gone, code=1, times=failures)
    docker.answer("image ls", out="made:1\n")
    if listed:
        assert engine.names("made") == ["made:1"]
        return
    with pytest.raises(SetupError, match="does not exist"):
        engine.names("made")


def test_names_without_a_tag_are_none(engine: Engine, docker: FakeDocker) -> None:
    docker.answer("image ls", out="made:1\nmade:<none>\nmade:2\n")
    assert engine.names("made") == ["made:1", "made:2"]
    assert docker.calls[0].endswith("--filter reference=made:*")


@pytest.mark.parametrize(
    ("answer", "unpacked"),
    [
        ({"out": "0\n5\n"}, True),
        ({"out": "0\n0\n"}, False),
        ({"err": "snapshot sha256:89b1 does not exist: not found", "code": 1}, False),
    ],
)
def test_an_image_is_unpacked_if_all_its_layers_are(
    engine: Engine, docker: FakeDocker, answer: dict[str, Any], unpacked: bool
) -> None:
    docker.answer("image history", **answer)
    assert engine.is_unpacked("made:1") is unpacked


def test_the_history_is_of_layers_from_the_bottom_up(engine: Engine, docker: FakeDocker) -> None:
    steps = [
        ("CMD bash", 0),
        ("HEALTHCHECK x", 0),
        ("COPY b /", 2),
        ("ENV A=b", 0),
        ("COPY a /", 1),
    ]
    lines = [json.dumps({"CreatedBy": text, "Size": str(size)}) for text, size in steps]
    docker.answer("image history", out="\n".join(lines) + "\n")
    assert engine.history("made:1") == [("COPY a /", 1), ("COPY b /", 2)]


def refused(engine: Engine) -> tuple[str, str]:
    with pytest.raises(SetupError) as caught:
        engine.push("ghcr.io/me/x:1")
    (problem,) = caught.value.problems
    assert problem.fix
    return problem.code, problem.what


def test_a_push_that_the_registry_refuses_says_why_and_is_not_tried_again(
    engine: Engine, docker: FakeDocker
) -> None:
    docker.answer("push --quiet ghcr.io/me/x:1", err="preparing\ndenied: not you\n", code=1)
    assert refused(engine) == ("registry-denied", "ghcr.io/me/x:1: denied: not you")
    assert len(docker.calls) == 1


def test_a_push_that_breaks_off_is_tried_again(engine: Engine, docker: FakeDocker) -> None:
    docker.answer("push", err="read tcp 10.0.0.1:5000: connection reset by peer", code=1)
    with stamina.set_testing(True, attempts=3):
        assert refused(engine)[0] == "registry-cut"
    assert docker.calls == ["push --quiet ghcr.io/me/x:1"] * 3


def test_an_engine_that_is_gone_is_no_failure_of_the_registry(
    engine: Engine, docker: FakeDocker
) -> None:
    docker.answer("push", err="Cannot connect to the Docker daemon at unix:///x.sock", code=1)
    assert refused(engine)[0] == "engine-failed"


@pytest.mark.parametrize("work", ["push", "bake", "run"])
def test_a_killed_client_is_a_failure_of_the_engine(
    engine: Engine, docker: FakeDocker, work: str, tmp_path: Path
) -> None:
    docker.program.write_text("#!/bin/sh\nkill -9 $$\n")
    works: dict[str, Callable[[], object]] = {
        "push": lambda: engine.push("ghcr.io/me/x:1"),
        "bake": lambda: engine.bake(tmp_path / "f", ["cell"], on_line=print),
        "run": lambda: engine.run("i:1", ["true"], platform="linux/amd64", timeout=9),
    }
    with pytest.raises(SetupError) as caught:
        works[work]()
    (problem,) = caught.value.problems
    assert (problem.code, "killed by SIGKILL" in problem.what) == ("engine-failed", True)


def test_a_pull_is_of_one_platform_and_says_whether_all_is_there(
    engine: Engine, docker: FakeDocker
) -> None:
    docker.answer("pull --quiet --platform linux/arm64 here:1", out="here:1\n")
    docker.answer("pull", err="connection refused\n", code=1)
    ended = threading.Event()
    assert engine.pull("here:1", "linux/arm64", ended)
    assert not engine.pull("gone:1", "linux/arm64", ended)


def test_a_pull_that_is_to_end_does(engine: Engine, docker: FakeDocker) -> None:
    docker.program.write_text("#!/bin/sh\nexec sleep 60\n")
    ended = threading.Event()
    threading.Timer(0.1, ended.set).start()
    began = time.monotonic()
    assert not engine.pull("slow:1", "linux/arm64", ended)
    assert time.monotonic() - began < 30


def test_images_that_are_named_by_digest_are_removed_at_once(
    engine: Engine, docker: FakeDocker
) -> None:
    docker.answer("image ls", out="\nhere/x@sha256:a\n\nhere/x@sha256:b\n")
    docker.answer("image rm --no-prune", err="No such image", code=1)
    names = engine.by_digest("here/*")
    assert names == ["here/x@sha256:a", "here/x@sha256:b"]
    engine.untag_all(names)
    engine.untag_all([])
    assert docker.calls[1:] == ["image rm --no-prune here/x@sha256:a here/x@sha256:b"]
