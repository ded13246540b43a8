"""Containers: how they are run, and that none is left behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.docker import FakeDocker

from imagefactory.errors import CheckFailedError, SetupError
from imagefactory.system.engine import Engine, RunningContainer
from imagefactory.system.engine.docker import Docker

GONE = "Error response from daemon: No such container: c0ffee\n"
STATE = '[{"Id": "c0ffee", "State": {"Running": %s}, "Image": "sha256:%s"}]'


def container(docker: FakeDocker) -> RunningContainer:
    return RunningContainer(Docker(binary=str(docker.program)), id="c0ffee", host_port=1)


def test_a_run_passes_its_options_on_and_keeps_the_streams_apart(
    engine: Engine, docker: FakeDocker
) -> None:
    docker.answer("run", out="out", err="err", code=3)
    done = engine.run(
        "made:1",
        ["-c", "x"],
        platform="linux/arm64",
        timeout=60,
        env={"A": "b c"},
        entrypoint="bash",
        stdin="text",
        network="none",
        mounts=[(Path("/model"), "/opt/model")],
        volumes=[("cache", "/root/.cache")],
        shm_size="1g",
    )
    assert (done.code, done.out, done.err) == (3, "out", "err")
    (call,) = docker.calls
    for part in (
        "--rm --name imagefactory-",
        "--pull never --platform linux/arm64 --interactive --entrypoint bash --network none",
        "--shm-size 1g",
        "--env A=b c",
        "--volume /model:/opt/model:ro",
        "--volume cache:/root/.cache made:1 -c x",
    ):
        assert part in call


def test_a_container_that_does_not_end_in_time_is_removed(
    engine: Engine, docker: FakeDocker
) -> None:
    docker.answer("container rm --force --volumes imagefactory-")
    docker.program.write_text(
        docker.program.read_text().replace("case", '[ "$1" != run ] || exec sleep 30\ncase', 1)
    )
    with pytest.raises(SetupError) as caught:
        engine.run("made:1", (), platform="linux/arm64", timeout=0.5)
    assert caught.value.problems[0].code == "command-timeout"
    run, removed = docker.calls
    assert run.split()[3] == removed.split()[-1]


def test_a_container_in_the_background_is_published_on_loopback_only(
    engine: Engine, docker: FakeDocker
) -> None:
    docker.answer("container run", out="c0ffee\n")
    docker.answer("container inspect c0ffee", out=STATE % ("true", "1"))
    started = engine.start(
        "made:1",
        ["serve"],
        platform="linux/arm64",
        publish=8888,
        env={"MODEL": "m"},
        mounts=[(Path("/model"), "/opt/model")],
        shm_size="1g",
    )
    assert started.id == "c0ffee"
    call = docker.calls[0]
    assert f"-p 127.0.0.1:{started.host_port}:8888" in call
    for part in (
        "--detach",
        "--env MODEL=m",
        "--pull never",
        "--platform linux/arm64",
        "--shm-size 1g",
        "--volume /model:/opt/model:ro made:1 serve",
    ):
        assert part in call


def test_a_container_that_does_not_start_is_removed_and_says_why(
    engine: Engine, docker: FakeDocker
) -> None:
    docker.answer("container run", err="runc: exec format error\n", code=127)
    docker.answer("container rm --force --volumes imagefactory-", err=GONE, code=1)
    with pytest.raises(CheckFailedError) as caught:
        engine.start("made:1", ["serve"], platform="linux/arm64", publish=80)
    (problem,) = caught.value.problems
    assert problem.code == "container-start"
    assert problem.what.endswith("exec format error")
    assert problem.fix.endswith("run --rm --platform linux/arm64 made:1 serve")
    assert docker.calls[1].startswith("container rm")


@pytest.mark.parametrize("running", ["true", "false"])
def test_a_container_is_alive_while_its_main_process_runs(docker: FakeDocker, running: str) -> None:
    docker.answer("container inspect c0ffee", out=STATE % (running, "1"))
    assert container(docker).alive() == (running == "true")


def test_a_container_that_is_gone_is_not_alive(docker: FakeDocker) -> None:
    docker.answer("container inspect c0ffee", err=GONE, code=1)
    assert not container(docker).alive()


def test_the_seconds_for_a_stop_reach_the_engine(docker: FakeDocker) -> None:
    docker.answer("stop --time 90 c0ffee")
    docker.answer("container wait c0ffee", out="137\n")
    assert container(docker).stop(90.0) == 137


def test_the_logs_are_both_streams_in_their_order(docker: FakeDocker) -> None:
    docker.answer("logs c0ffee", out="first\n", err="second\n")
    assert container(docker).logs() == "first\nsecond\n"


def test_removing_a_container_twice_is_no_error(docker: FakeDocker) -> None:
    docker.answer("container rm --force --volumes c0ffee", err=GONE, code=1)
    container(docker).remove()


def test_a_container_that_goes_while_they_are_listed_is_left_out(
    engine: Engine, docker: FakeDocker
) -> None:
    docker.answer("container list", out="c0ffee\ngone\n")
    docker.answer("container inspect c0ffee", out=STATE % ("false", "1"))
    docker.answer("container inspect gone", err=GONE, code=1)
    assert engine.used_images() == {"sha256:1"}


def test_a_file_is_read_from_a_container_that_is_never_started(
    engine: Engine, docker: FakeDocker
) -> None:
    docker.answer("create --name imagefactory-", out="c0ffee\n")
    docker.answer("cp c0ffee:/x", err="no such file", code=1)
    docker.answer("container rm")
    assert engine.read_file("made:1", "/x") is None
    assert [call.split()[0] for call in docker.calls] == ["create", "cp", "container"]
