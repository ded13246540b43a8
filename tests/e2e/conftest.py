"""Real parts for the end-to-end tests: an engine, a registry, and the command line as a user runs it."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from imagefactory import toolchain
from imagefactory.engine import Engine
from imagefactory.locking import store
from imagefactory.settings import from_environment

ROOT = Path(__file__).parents[2]
CPU = "imagefactory/vllm:cpu-vllm0.32.0-torch2.13.0-cpu"


@dataclass(frozen=True)
class Ended:
    """A finished command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def factory(*argv: str, cwd: Path = ROOT, environ: Mapping[str, str] | None = None) -> Ended:
    """Run imagefactory as a user would."""
    done = subprocess.run(
        [sys.executable, "-m", "imagefactory", *argv],
        cwd=cwd,
        env={**os.environ, **(environ or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """The engine of this machine (`make test` brings one up); images that tests made go again."""
    found = Engine.connect(os.environ, from_environment(os.environ, ROOT).state)
    yield found
    for ref in (
        "imagefactory/test:*",
        "imagefactory/vllm:cpu-two-*",
        "imagefactory/vllm:cpu-broken-*",
        "imagefactory/vllm:cpu-late-*",
    ):
        # by name: an image of equal content may be somebody's, and goes only with its last name
        argv = [*found.docker, "image", "ls", "--format", "{{.Repository}}:{{.Tag}}", "--filter", f"reference={ref}"]
        listed = subprocess.run(argv, capture_output=True, text=True, check=True)
        for name in listed.stdout.split():
            subprocess.run([*found.docker, "image", "rm", "--force", name], check=True, capture_output=True)


@pytest.fixture(scope="session")
def cuda() -> Path:
    """The CUDA toolchain of the lock, for proofs that compile."""
    settings = from_environment(os.environ, ROOT)
    locked = toolchain.of_this_machine(store.read(ROOT / "wheels.lock"), "cuda13.0")
    assert locked is not None
    return toolchain.prepare(locked, settings)


@pytest.fixture(scope="session")
def cpu_image(engine: Engine) -> str:
    """The cpu cell, built from the committed matrix (nothing is done if it is there already)."""
    done = factory("build", "--matrix", "--select", "flavor=cpu", "--no-verify")
    assert done.code == 0, done.err
    return CPU


@pytest.fixture(scope="session")
def verified_cpu_image(cpu_image: str) -> str:
    """The cpu image with a receipt."""
    done = factory("verify", cpu_image)
    assert done.code == 0, done.out + done.err
    return cpu_image


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """A real registry on loopback with an empty store; gives its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    script = str(ROOT / "scripts" / "engine")
    subprocess.run([script, "registry-up", port, str(tmp_path / "registry")], check=True, stdout=subprocess.DEVNULL)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        subprocess.run([script, "registry-down", port], check=True)


def copy_project(folder: Path, *changes: tuple[str, str]) -> Path:
    """A copy of the project in ``folder``, with texts of its matrix replaced."""
    for name in ("templates", "patches", "scripts"):
        shutil.copytree(ROOT / name, folder / name)
    shutil.copy(ROOT / "wheels.lock", folder / "wheels.lock")
    text = (ROOT / "matrix.yaml").read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (folder / "matrix.yaml").write_text(text)
    return folder


def derive(engine: Engine, folder: Path, image: str, tag: str, dockerfile: str) -> str:
    """An image made from ``image`` with something wrong in it."""
    (folder / "Dockerfile").write_text(f"FROM {image}\n{dockerfile}")
    env = {**os.environ, **engine.environment}
    argv = [*engine.docker, "buildx", "build", "--provenance=false", "--load", "--tag", tag, str(folder)]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return tag


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the project's data whose matrix a test may change."""
    return copy_project(tmp_path / "project")


@pytest.fixture
def remote(engine: Engine, tmp_path: Path) -> Iterator[str]:
    """A builder with the remote driver. Its BuildKit is the engine's, reached as from another machine: by a socket."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(tmp_path / "buildkit.sock"))
    server.listen()
    running: list[subprocess.Popen[bytes]] = []

    def relay() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            argv = [*engine.docker, "buildx", "dial-stdio", "--builder", "default"]
            pipe = connection.fileno()
            running.append(subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL))
            connection.close()

    threading.Thread(target=relay, daemon=True).start()
    name = f"imagefactory-test-{secrets.token_hex(4)}"
    buildx, env = [*engine.docker, "buildx"], {**os.environ, **engine.environment}
    create = ["create", "--name", name, "--driver", "remote", f"unix://{tmp_path}/buildkit.sock"]
    subprocess.run([*buildx, *create], env=env, check=True, capture_output=True)
    try:
        yield name
    finally:
        subprocess.run([*buildx, "rm", "--force", name], env=env, check=True, capture_output=True)
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        for process in running:
            process.terminate()
            process.wait()
