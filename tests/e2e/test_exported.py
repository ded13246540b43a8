"""What `recipe export` writes is started by the programs that it is for."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import requests
from support.e2e import factory

from imagefactory.launching import compose as as_compose
from imagefactory.recipes import recipes, starting
from imagefactory.recipes.starting import Wishes
from imagefactory.system.engine import Engine
from imagefactory.verifying.models import dense

pytestmark = pytest.mark.e2e

#: Where `make starters` unpacks them.
UNPACKED = Path(sys.prefix) / "starters/usr/libexec"
COMPOSE, GENERATOR = UNPACKED / "docker/cli-plugins/docker-compose", UNPACKED / "podman/quadlet"
#: Seconds that the server may take, where others want the processor.
READY = 900
#: A user without a home, who owns the cache.
USER = 1000
QUESTION = "the capital of France is"
RECIPE = f"""\
summary: the tiny model
model: test/capitals
weights: bf16
hardware: [cpu]
vllm: ">=0.32"
user: "{USER}:{USER}"
options:
  max-model-len: 256
  max-num-seqs: 4
  dtype: float32
  enforce-eager: true
  compilation-config: {{mode: 0}}
env: {{VLLM_CPU_KVCACHE_SPACE: "1", HF_HUB_OFFLINE: "1", NOTE: "5 $ or 100%"}}
"""


@dataclass(frozen=True)
class Exported:
    """One recipe as files of several forms, and what it is served as."""

    folder: Path
    name: str
    port: int

    def compose(self, engine: Engine, *words: str) -> None:
        done = compose(engine, self.folder / "compose.yaml", *words)
        assert done.returncode == 0, done.stderr[-2000:]


def compose(engine: Engine, file: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(COMPOSE), "--file", str(file), *words],
        env={**os.environ, **engine.environment, "HF_TOKEN": "hf_planted"},
        capture_output=True,
        text=True,
        timeout=READY,
        check=False,
    )


@pytest.fixture
def exported(cpu_image: str, tmp_path: Path) -> Exported:
    model, cache = dense.MODEL.write(tmp_path / "model"), tmp_path / "cache"
    cache.mkdir()
    os.chown(cache, USER, USER)
    model.chmod(0o755)
    recipe = tmp_path / "tiny.yaml"
    recipe.write_text(RECIPE)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    name = f"imagefactory-test-{port}"
    for form, file in (("compose", "compose.yaml"), ("quadlet", f"units/{name}.container")):
        (tmp_path / "units").mkdir(exist_ok=True)
        done = factory(
            *("recipe", "export", str(recipe), "--to", form, "--image", cpu_image),
            *("--model", str(model), "--cache", str(cache), "--name", name, "--port", str(port)),
            *("--output", str(tmp_path / file)),
        )
        assert done.code == 0, done.err
    return Exported(folder=tmp_path, name=name, port=port)


@pytest.fixture
def served(exported: Exported, engine: Engine) -> Iterator[Exported]:
    try:
        exported.compose(engine, "up", "--detach", "--wait", "--wait-timeout", str(READY - 10))
        yield exported
    finally:
        exported.compose(engine, "down", "--timeout", "1")


def test_compose_starts_a_server_and_podman_would_start_the_same(
    served: Exported, engine: Engine
) -> None:
    url = f"http://127.0.0.1:{served.port}/v1/completions"
    body = {"model": "test/capitals", "prompt": QUESTION, "max_tokens": 1, "temperature": 0}
    answer = requests.post(url, json=body, timeout=300).json()
    assert answer["choices"][0]["text"].strip() == "Paris"

    docker = engine._docker.must
    (started,) = json.loads(docker("container", "inspect", served.name))
    assert docker("exec", served.name, "id", "-u").strip() == str(USER)
    kept = {path.name: path.stat().st_uid for path in (served.folder / "cache").iterdir()}
    assert kept.get("vllm") == USER

    options, image, command = podman(served)
    assert image == started["Config"]["Image"]
    assert command == started["Config"]["Cmd"]
    given = set(started["Config"]["Env"])
    assert {"HF_TOKEN=hf_planted", "NOTE=5 $ or 100%", *options["--env"]} <= given
    assert options["--secret"] == ["HF_TOKEN,type=env,target=HF_TOKEN"]
    mounts = {
        f"{one['Source']}:{one['Destination']}{'' if one['RW'] else ':ro'}"
        for one in started["Mounts"]
    }
    assert {*options["-v"]} == mounts
    host = started["HostConfig"]
    assert options["--user"] == [started["Config"]["User"]]
    assert options["--cap-drop"] == [one.lower() for one in host["CapDrop"]]
    assert options["--security-opt"] == ["no-new-privileges"]
    assert host["SecurityOpt"] == ["no-new-privileges:true"]
    assert options["--shm-size"] == [str(host["ShmSize"])]
    assert options["--publish"] == [f"127.0.0.1:{served.port}:8000"]


def test_compose_mounts_tuned_kernels_and_fails_where_there_are_none(
    cpu_image: str, engine: Engine, tmp_path: Path
) -> None:
    name = "E=8,N=256,device_name=NVIDIA_GB10,dtype=fp8_w8a8,block_shape=[128,128].json"
    tunings, recipe = tmp_path / "tunings", tmp_path / "tiny.yaml"
    tunings.mkdir()
    (tunings / name).write_text("tuned")
    recipe.write_text(RECIPE)
    wishes = Wishes(cache=str(tmp_path), tunings=str(tunings), name=f"tuned-{os.getpid()}")
    on_gpu = starting.launch(recipes.read(recipe).on("0.33.0", 1), cpu_image, "gb10", wishes)
    file = tmp_path / "compose.yaml"
    file.write_text(as_compose.text(replace(on_gpu, gpus=False)))
    try:
        shown = ("run", "--rm", "--entrypoint", "sh", on_gpu.name, "-c")
        read = f'cat "$VLLM_TUNED_CONFIG_FOLDER/{name}"; touch /tunings/mine'
        done = compose(engine, file, *shown, read)
        assert done.stdout == "tuned", done.stderr
        assert "Read-only file system" in done.stderr
        tunings.rename(tmp_path / "elsewhere")
        done = compose(engine, file, *shown, read)
        assert done.returncode != 0
        assert f"bind source path does not exist: {tunings}" in done.stderr
        assert not tunings.exists()
    finally:
        compose(engine, file, "down", "--timeout", "1")


def podman(exported: Exported) -> tuple[dict[str, list[str]], str, list[str]]:
    """What systemd would call, as Podman's generator says: options, the image and its command."""
    done = subprocess.run(
        [str(GENERATOR), "-dryrun"],
        env={"QUADLET_UNIT_DIRS": str(exported.folder / "units")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (line,) = [row for row in done.stdout.splitlines() if row.startswith("ExecStart=")]
    words = [word.replace("%%", "%").replace("$$", "$") for word in shlex.split(line)]
    at = next(n for n, word in enumerate(words) if "@sha256:" in word)
    options: dict[str, list[str]] = {}
    rest = words[2:at]
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        takes = not equals and rest and not rest[0].startswith("-")
        options.setdefault(name, []).append(rest.pop(0) if takes else value)
    return options, words[at], words[at + 1 :]
