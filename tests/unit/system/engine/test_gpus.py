"""GPUs for containers: how an engine is asked for them, and what it says when it has none."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from support.docker import FakeDocker

from imagefactory.errors import SetupError
from imagefactory.system.engine import Engine

pytestmark = pytest.mark.programs

DAEMON = "docker: Error response from daemon: "
NO_HOOK = 'could not select device driver "" with capabilities: [[gpu]].'
NO_CDI = 'could not select device driver "cdi" with capabilities: [].'
NOT_IN_CDI = "CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=all"
CREATED: dict[str, Any] = {
    "Id": "c0ffee",
    "Name": "/qwen",
    "Image": "sha256:a",
    "Config": {},
    "State": {"Status": "created", "StartedAt": "", "FinishedAt": ""},
}
CLI = "failed to create shim task: nvidia-container-cli: "


@pytest.mark.parametrize(
    ("by_hook", "by_cdi", "says", "fix"),
    [
        (NO_HOOK, NO_CDI, NO_HOOK, "install the NVIDIA container toolkit"),
        (NO_HOOK, NOT_IN_CDI, NOT_IN_CDI, "install the NVIDIA container toolkit"),
        (f"{CLI}initialization error: nvml error", "", "nvml error", "nvidia-smi has to work"),
        (f"{CLI}requirement error: unsatisfied condition: cuda>=13", "", "cuda>=13", "update the"),
    ],
)
def test_an_engine_without_a_gpu_says_why_and_what_to_do(
    engine: Engine, docker: FakeDocker, by_hook: str, by_cdi: str, says: str, fix: str
) -> None:
    hints = "\nRun 'docker run --help' for more information\n"
    docker.answer("run --gpus all", err=f"{DAEMON}{by_hook}\n{hints}", code=125)
    docker.answer("run --device nvidia.com/gpu=all", err=f"{DAEMON}{by_cdi}\n{hints}", code=125)
    docker.answer("container rm --force --volumes imagefactory-")
    wanted: dict[str, Any] = {"platform": "linux/arm64", "gpus": True}
    for run in (partial(engine.run, timeout=60), engine.start):
        with pytest.raises(SetupError) as caught:
            run("made:1", (), **wanted)
        (problem,) = caught.value.problems
        assert problem.code == "gpu-missing"
        assert says in problem.what
        assert fix in problem.fix
        assert docker.calls[-1].startswith("container rm")


def test_an_engine_without_the_hook_gives_gpus_by_cdi(engine: Engine, docker: FakeDocker) -> None:
    docker.answer("run --gpus all", err=f"{DAEMON}{NO_HOOK}\n", code=125)
    docker.answer("run --device nvidia.com/gpu=all", out="sm_121")
    docker.answer("container rm --force --volumes imagefactory-")
    done = engine.run("made:1", (), platform="linux/arm64", timeout=60, gpus=True)
    assert (done.ok, done.out) == (True, "sm_121")
    first, removed, second = docker.calls
    assert first.split()[3:] == second.split()[3:]
    assert removed.split()[-1] in second.split()


def test_a_server_too_gets_gpus_by_cdi(engine: Engine, docker: FakeDocker) -> None:
    words = ["--detach", "--name", "qwen", "--gpus", "all", "--env", "A=1", "made:1", "serve"]
    docker.answer("run --pull never --cidfile", err=f"{DAEMON}{NO_HOOK}\n", code=125, times=1)
    docker.answer("container inspect qwen", out=json.dumps([CREATED]))
    docker.answer("rm --force --volumes c0ffee")
    docker.answer("run --pull never --cidfile", out="c0ffee2\n")
    assert engine.start_service(words) == "c0ffee2"
    assert docker.calls[-1].endswith("--device nvidia.com/gpu=all --env A=1 made:1 serve")


def test_what_a_program_says_of_gpus_is_not_what_the_engine_says(
    engine: Engine, docker: FakeDocker
) -> None:
    docker.answer("run", err="nvidia-container-cli: no GPU\n", code=1)
    done = engine.run("made:1", (), platform="linux/arm64", timeout=60, gpus=True)
    assert (done.code, len(docker.calls)) == (1, 1)


def test_a_machine_without_a_gpu_says_so_and_keeps_no_container(
    engine: Engine, docker: FakeDocker
) -> None:
    said = 'docker: Error response from daemon: could not select device driver "" with gpu\n'
    docker.answer("run", err=f"{said}\nRun 'docker run --help' for more information\n", code=125)
    docker.answer("rm --force --volumes imagefactory-")
    with pytest.raises(SetupError) as caught, engine.lent(lambda *_: ["--gpus", "all"]):
        pass
    assert caught.value.problems[0].code == "gpu-missing"
    assert "could not select device driver" in caught.value.problems[0].what
    assert "rm --force" in docker.calls[-1]
