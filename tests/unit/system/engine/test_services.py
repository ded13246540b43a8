"""Containers that serve, as Docker's client reports them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.docker import FakeDocker

from imagefactory.errors import CheckFailedError, SetupError
from imagefactory.system import shell
from imagefactory.system.engine import Engine
from imagefactory.system.engine.docker import Docker

pytestmark = pytest.mark.programs

ROW = {
    "Id": "abc",
    "Name": "/vllm-1",
    "Image": "sha256:1",
    "Config": {"Labels": {"a": "b"}},
    "State": {
        "Status": "exited",
        "ExitCode": 137,
        "OOMKilled": True,
        "StartedAt": "2026-11-22T10:00:00Z",
        "FinishedAt": "2026-11-22T11:00:00Z",
    },
}
GONE = "Error response from daemon: No such container: vllm-1\n"


def test_a_container_has_its_state_its_end_and_its_labels(
    docker: FakeDocker, engine: Engine
) -> None:
    docker.answer("ps --all --quiet --no-trunc --filter label=a=b", out="abc\n")
    docker.answer("container inspect abc", out=json.dumps([ROW]))
    (found,) = engine.services("a=b")
    assert (found.name, found.labels, found.image) == ("vllm-1", {"a": "b"}, "sha256:1")
    assert (found.running, found.code, found.out_of_memory) == (False, 137, True)
    assert (found.health, found.since) == ("", "2026-11-22T11:00:00Z")


def test_the_health_and_the_start_of_a_container_that_runs(
    docker: FakeDocker, engine: Engine
) -> None:
    state = {**ROW["State"], "Status": "running", "Health": {"Status": "healthy"}}  # type: ignore[dict-item]
    docker.answer("container inspect vllm-1", out=json.dumps([{**ROW, "State": state}]))
    found = engine.service("vllm-1")
    assert found is not None
    assert (found.running, found.health, found.since[11:13]) == (True, "healthy", "10")


def test_what_does_not_exist_is_no_failure_and_an_engine_that_is_away_is_one(
    docker: FakeDocker, engine: Engine
) -> None:
    calls = ("container inspect", "logs", "rm")
    for words in calls:
        docker.answer(words, out="[]" if "inspect" in words else "", err=GONE, code=1, times=1)
        docker.answer(words, err="Cannot connect to the Docker daemon\n", code=1)
    assert engine.service("vllm-1") is None
    assert engine.service_log("vllm-1", last=5) == ""
    engine.remove_service("vllm-1")
    with pytest.raises(SetupError, match="Cannot connect"):
        engine.service("vllm-1")
    with pytest.raises(SetupError, match="Cannot connect"):
        engine.service_log("vllm-1", last=5)
    with pytest.raises(SetupError, match="Cannot connect"):
        engine.remove_service("vllm-1")


def test_a_log_that_is_followed_has_its_last_lines_first(
    docker: FakeDocker, engine: Engine
) -> None:
    docker.answer("logs --follow --tail 5 vllm-1", out="one\ntwo\n")
    with engine.follow_service_log("vllm-1", last=5) as process:
        assert process.stdout is not None
        assert process.stdout.read() == "one\ntwo\n"
        assert process.wait() == 0
    docker.answer("logs --follow --since 5m vllm-1", out="new\n")
    with engine.follow_service_log("vllm-1", last=None, since="5m") as process:
        assert process.stdout is not None
        assert process.stdout.read() == "new\n"
    docker.answer("logs --tail 5 --since 5m vllm-1", out="new\n")
    assert engine.service_log("vllm-1", last=5, since="5m") == "new\n"


def test_a_container_that_cannot_be_started_says_why(docker: FakeDocker, engine: Engine) -> None:
    docker.answer("run --pull never --cidfile ", err="docker: bad device\nSee --help\n", code=125)
    with pytest.raises(CheckFailedError, match="docker: bad device") as caught:
        engine.start_service(["--name", "x", "image"])
    assert "docker run --name x image" in caught.value.problems[0].fix


@pytest.mark.parametrize(
    ("said", "code", "says"),
    [
        (
            'Conflict. The container name "/x" is already in use by container "29529a". You have',
            "container-name",
            "there is a container x already",
        ),
        (
            "Error starting userland proxy: listen tcp4 127.0.0.1:8000: bind: address already in use",
            "container-port",
            "something else uses the port 127.0.0.1:8000 of the host",
        ),
        (
            "endpoint x (d2ee): Bind for 0.0.0.0:8000 failed: port is already allocated.",
            "container-port",
            "0.0.0.0:8000",
        ),
    ],
)
def test_a_name_or_port_that_is_taken_is_named(
    docker: FakeDocker, engine: Engine, said: str, code: str, says: str
) -> None:
    docker.answer("run", err=f"docker: Error response from daemon: {said}\n", code=125)
    docker.answer("container inspect", out="[]", err=GONE, code=1)
    with pytest.raises(CheckFailedError) as caught:
        engine.start_service(["--name", "x", "image"])
    (problem,) = caught.value.problems
    assert problem.code == code
    assert says in problem.what


@pytest.mark.parametrize(("state", "stays"), [("created", False), ("running", True)])
def test_nothing_is_left_of_a_container_that_did_not_start(
    docker: FakeDocker, engine: Engine, state: str, stays: bool
) -> None:
    docker.answer("run", err="docker: bad device\n", code=125)
    row = {"Id": "c0ffee", "Name": "/x", "Image": "sha256:a", "Config": {}}
    row["State"] = {"Status": state, "StartedAt": "", "FinishedAt": ""}
    docker.answer("container inspect x", out=json.dumps([row]))
    docker.answer("rm --force --volumes c0ffee")
    with pytest.raises(CheckFailedError):
        engine.start_service(["--name", "x", "image"])
    assert ("rm --force --volumes c0ffee" in docker.calls) is not stays


@pytest.mark.parametrize("written", ["c0ffee", ""])
def test_ctrl_c_while_a_container_is_started_leaves_none(
    docker: FakeDocker, engine: Engine, monkeypatch: pytest.MonkeyPatch, written: str
) -> None:
    called = Docker.call

    def call(self: Docker, *words: str) -> shell.Completed:
        if words[0] == "run":
            Path(words[words.index("--cidfile") + 1]).write_text(written)
            raise KeyboardInterrupt
        return called(self, *words)

    monkeypatch.setattr(Docker, "call", call)
    row = {"Id": "before", "Name": "/x", "Image": "sha256:a", "Config": {}}
    row["State"] = {"Status": "running", "StartedAt": "", "FinishedAt": ""}
    docker.answer("container inspect x", out=json.dumps([row]))
    docker.answer("rm --force --volumes c0ffee")
    with pytest.raises(KeyboardInterrupt):
        engine.start_service(["--name", "x", "image"])
    removed = [one.split()[-1] for one in docker.calls if one.startswith("rm ")]
    assert removed == [written] * bool(written)  # what had the name before is somebody else's


def test_ssh_asks_nobody_for_a_password(docker: FakeDocker, tmp_path: Path) -> None:
    engine = Engine.of_machine("spark1:2222", {"PATH": str(tmp_path)}, tmp_path)
    assert engine.environment["DOCKER_HOST"] == "ssh://spark1:2222"
    assert engine.environment["SSH_ASKPASS_REQUIRE"] == "force"
    docker.answer("--host ssh://spark1:2222 version", out="28.5.2\n")
    assert engine.answers() == "28.5.2"


def test_what_ssh_says_is_the_reason(docker: FakeDocker, engine: Engine) -> None:
    said = (
        'error during connect: Get "http://docker.example.com/v1.50/containers": command [ssh -- x '
        "docker system dial-stdio] has exited with exit status 255, make sure the URL is valid: "
        "stderr=ssh: connect to host x port 22: Connection refused"
    )
    docker.answer("version", err=said, code=1)
    with pytest.raises(SetupError) as caught:
        engine.answers()
    assert caught.value.problems[0].what == (
        "docker version: ssh: connect to host x port 22: Connection refused"
    )
