"""Containers: how they are run, and that none is left behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.docker import FakeDocker
from support.processes import dead_owner

from imagefactory.errors import CheckFailedError, SetupError
from imagefactory.system import owner, platforms
from imagefactory.system.engine import Engine, Limits, RunningContainer
from imagefactory.system.engine.docker import Docker

pytestmark = pytest.mark.programs

GONE = "Error response from daemon: No such container: c0ffee\n"
OUT_OF_MEMORY = '[{"Id": "c0ffee", "State": {"OOMKilled": %s}}]'
STATE = '[{"Id": "c0ffee", "State": {"Running": %s}, "Image": "sha256:%s"}]'


def container(docker: FakeDocker) -> RunningContainer:
    return RunningContainer(Docker(binary=str(docker.program)), id="c0ffee")


def test_a_run_passes_its_options_on_and_keeps_the_streams_apart(
    engine: Engine, docker: FakeDocker, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker.answer("run", out="out", err="err", code=3)
    monkeypatch.setattr(platforms, "here", lambda: platforms.Platform.AMD64)
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
        "--pull never --platform linux/arm64 --no-healthcheck --log-driver none --cap-drop ALL",
        "--interactive --entrypoint bash --network none",
        "--shm-size 1g",
        "--env QEMU_CPU=cortex-a76 --env A=b c",
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


def confinement(call: str) -> dict[str, str]:
    """The options that confine the container of a docker command line, with their values."""
    words = call.split()
    return {
        word: words[number + 1]
        for number, word in enumerate(words)
        if word
        in ("--cap-drop", "--security-opt", "--memory", "--memory-swap", "--pids-limit", "--label")
    }


@pytest.mark.parametrize("how", ["run", "start"])
def test_every_container_of_an_image_is_confined_and_says_whose_it_is(
    engine: Engine, docker: FakeDocker, how: str
) -> None:
    docker.answer("run", out="c0ffee\n")
    limits = Limits(memory=1 << 30, processes=99)
    if how == "run":
        engine.run("made:1", (), platform="linux/arm64", timeout=60, limits=limits)
    else:
        engine.start("made:1", (), platform="linux/arm64", limits=limits)
    assert confinement(docker.calls[0]) == {
        "--cap-drop": "ALL",
        "--security-opt": "no-new-privileges",
        "--memory": "1073741824",
        "--memory-swap": "1073741824",
        "--pids-limit": "99",
        "--label": f"{owner.LABEL}={owner.mine()}",
    }


def test_a_container_in_the_background_has_no_network_and_a_log_of_bounded_size(
    engine: Engine, docker: FakeDocker
) -> None:
    docker.answer("run", out="c0ffee\n")
    started = engine.start(
        "made:1",
        ["serve"],
        platform="linux/arm64",
        env={"MODEL": "m"},
        mounts=[(Path("/model"), "/opt/model")],
        shm_size="1g",
    )
    (call,) = docker.calls
    assert f"--name {started.id} " in call
    assert "-p" not in call.split()
    assert "--publish" not in call
    for part in (
        "--detach",
        "--network none",
        "--log-driver local --log-opt max-size=8388608 --log-opt max-file=2",
        "--env MODEL=m",
        "--pull never",
        "--no-healthcheck",
        "--platform linux/arm64",
        "--shm-size 1g",
        "--volume /model:/opt/model:ro made:1 serve",
    ):
        assert part in call


def test_containers_on_a_network_find_each_other_by_their_names(
    engine: Engine, docker: FakeDocker
) -> None:
    docker.answer("run", out="c0ffee\n")
    engine.start("made:1", (), platform="linux/arm64", network="ours", alias="head")
    assert "--network ours --network-alias head" in docker.calls[0]


@pytest.mark.parametrize(("kind", "how"), [("network", "--internal "), ("volume", "")])
def test_a_network_or_volume_is_removed_as_are_those_that_are_left(
    engine: Engine, docker: FakeDocker, kind: str, how: str
) -> None:
    dead = dead_owner()
    docker.answer(f"{kind} ls", out=listed(("left", dead), ("used", owner.mine()), ("odd", "x")))
    docker.answer(kind)
    with getattr(engine, kind)() as name:
        *_, removed, created = docker.calls
        assert removed == f"{kind} rm left"
        assert created == f"{kind} create {how}--label {owner.LABEL}={owner.mine()} {name}"
    assert docker.calls[-1] == f"{kind} rm {name}"
    assert not [call for call in docker.calls if call.endswith((" used", " odd"))]


def test_a_container_that_does_not_start_is_removed_and_says_why(
    engine: Engine, docker: FakeDocker
) -> None:
    docker.answer("run", err="runc: exec format error\n", code=127)
    docker.answer("container rm --force --volumes imagefactory-", err=GONE, code=1)
    with pytest.raises(CheckFailedError) as caught:
        engine.start("made:1", ["serve"], platform="linux/arm64")
    (problem,) = caught.value.problems
    assert problem.code == "container-start"
    assert problem.what.endswith("exec format error")
    assert problem.fix.endswith("run --rm --platform linux/arm64 made:1 serve")
    assert docker.calls[1].startswith("container rm")


NO_SPACE = (
    "docker: Error response from daemon: failed to extract layer: no space left on device\n\n"
    "Run 'docker run --help' for more information\n"
)
NO_DAEMON = "docker: Cannot connect to the Docker daemon at unix:///x. Is it running?\n"


@pytest.mark.parametrize("said", [NO_SPACE, NO_DAEMON])
@pytest.mark.parametrize("how", ["run", "start"])
def test_what_the_engine_fails_at_is_not_the_image_s_fault(
    engine: Engine, docker: FakeDocker, how: str, said: str
) -> None:
    docker.answer("run", err=said, code=125)
    docker.answer("container rm")
    options = {"platform": "linux/arm64", **({"timeout": 60} if how == "run" else {})}
    with pytest.raises(SetupError) as caught:
        getattr(engine, how)("made:1", (), **options)
    (problem,) = caught.value.problems
    assert problem.code == "engine-failed"
    assert said.splitlines()[0].removeprefix("docker: ") in problem.what
    assert docker.calls[1].startswith("container rm")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (125, "a program that ends like this by itself\n"),
        (125, "docker: Error response from daemon: unable to find user nobody99\n"),
        (125, "docker: Error response from daemon: no command specified.\n"),
        (127, "docker: Error response from daemon: exec: no such file\n"),
        (135, ""),
    ],
)
def test_what_the_image_fails_at_is_the_end_of_a_run(
    engine: Engine, docker: FakeDocker, code: int, said: str
) -> None:
    docker.answer("run", err=said, code=code)
    assert engine.run("made:1", (), platform="linux/arm64", timeout=60).code == code


def test_a_docker_client_that_is_killed_is_not_the_image_s_fault(
    engine: Engine, docker: FakeDocker
) -> None:
    docker.answer("container rm")
    text = docker.program.read_text()
    docker.program.write_text(text.replace("case", '[ "$1" != run ] || kill -9 $$\ncase', 1))
    with pytest.raises(SetupError, match="docker run: Docker's client was killed by SIGKILL"):
        engine.run("made:1", (), platform="linux/arm64", timeout=60)
    assert docker.calls[1].startswith("container rm")


def test_a_container_that_writes_too_much_is_ended_and_removed(
    engine: Engine, docker: FakeDocker
) -> None:
    docker.answer("container rm")
    text = docker.program.read_text()
    docker.program.write_text(text.replace("case", '[ "$1" != run ] || exec yes\ncase', 1))
    done = engine.run("made:1", (), platform="linux/arm64", timeout=60, most=1000)
    assert done.cut
    assert len(done.out) == 1000
    assert docker.calls[1].startswith("container rm")


def listed(*rows: tuple[str, ...]) -> str:
    return "".join("\t".join(row) + "\n" for row in rows)


def test_only_our_containers_whose_owner_has_ended_are_orphans(
    engine: Engine, docker: FakeDocker
) -> None:
    dead = dead_owner()
    _, pid, started, since = dead.rsplit("-", 3)
    name = "imagefactory-0123456789ab"
    docker.answer(
        "ps --all",
        out=listed(
            ("1", name, owner.mine()),
            ("2", name, dead),
            ("3", "somebody-s", dead),  # of an image that has our label
            ("4", name, "nonsense"),
            ("5", name, f"elsewhere-{pid}-{started}-{since}"),
            ("6", name, f"elsewhere-{pid}-{started}-1"),
        ),
    )
    assert engine.orphans() == ["2", "6"]


def test_what_a_program_in_a_container_says_comes_through_a_socket(docker: FakeDocker) -> None:
    docker.answer("exec --interactive c0ffee relay", out="hello")
    with container(docker).attach(["relay"]) as connection:
        assert connection.recv(100) == b"hello"
        assert connection.recv(100) == b""


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
    docker.answer("logs --tail 1 c0ffee", err="second\n")
    assert container(docker).logs() == "first\nsecond\n"
    assert container(docker).logs(last=1) == "second\n"
    assert container(docker).logs(most=4) == "firs"


@pytest.mark.parametrize("killed", ["true", "false"])
def test_a_container_says_whether_the_memory_limit_ended_a_process(
    docker: FakeDocker, killed: str
) -> None:
    docker.answer("container inspect c0ffee", out=OUT_OF_MEMORY % killed)
    assert container(docker).ran_out_of_memory() == (killed == "true")


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


def test_the_image_of_the_container_that_publishes_a_port_is_known(
    engine: Engine, docker: FakeDocker
) -> None:
    state = {"Id": "c0ffee", "Image": "sha256:1", "Config": {"Image": "vllm:one"}}
    docker.answer("container list -q --no-trunc --filter publish=8888", out="c0ffee\n")
    docker.answer("container list", out="")
    docker.answer("container inspect c0ffee", out=json.dumps([state]))
    assert engine.publishing(8888) == ("vllm:one", "sha256:1")
    assert engine.publishing(9999) is None


def test_a_file_is_read_from_a_container_that_is_never_started(
    engine: Engine, docker: FakeDocker
) -> None:
    docker.answer("create --name imagefactory-", out="c0ffee\n")
    docker.answer("cp c0ffee:/x", err="Could not find the file /x in container", code=1)
    docker.answer("container rm")
    assert engine.read_file("made:1", "/x") is None
    assert [call.split()[0] for call in docker.calls] == ["create", "cp", "container"]


def test_a_folder_comes_from_a_container_that_is_never_started(
    engine: Engine, docker: FakeDocker
) -> None:
    docker.answer("create ", out="c0ffee\n")
    docker.answer("cp c0ffee:/opt/venv -", out="a tar stream")
    docker.answer("container rm")
    with engine.folder("sha256:1", "/opt/venv") as stream:
        assert stream.read() == b"a tar stream"
    assert [call.split()[0] for call in docker.calls] == ["create", "cp", "container"]


def test_a_file_that_the_engine_fails_to_read_is_not_a_file_that_is_missing(
    engine: Engine, docker: FakeDocker
) -> None:
    docker.answer("create --name imagefactory-", out="c0ffee\n")
    docker.answer("cp c0ffee:/x", err="write /x: no space left on device", code=1)
    docker.answer("container rm")
    with pytest.raises(SetupError, match="no space left on device"):
        engine.read_file("made:1", "/x")


def test_a_lent_container_has_an_owner_and_is_removed(engine: Engine, docker: FakeDocker) -> None:
    docker.answer("run", out="c0ffee\n")
    docker.answer("rm --force --volumes imagefactory-")
    with engine.lent(
        lambda name, labels: ["--name", name, *(f"--label={k}={v}" for k, v in labels.items())]
    ) as lent:
        (started,) = docker.calls
    assert f" --name {lent.id} --label={owner.LABEL}={owner.mine()}" in started
    assert docker.calls[-1].split()[-1] == lent.id


def test_the_exit_code_of_a_container_is_known(docker: FakeDocker) -> None:
    docker.answer("container inspect", out='[{"Id": "c0ffee", "State": {"ExitCode": 3}}]')
    assert container(docker).exit_code() == 3
