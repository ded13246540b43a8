"""Real parts for the end-to-end tests.

An engine, a registry, and the command line as a user runs it.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from machines import machines, start_machines
from support import ROOT
from support.e2e import CPU, Verified, copy_project, factory, planted

from imagefactory.locking import store
from imagefactory.patching import cuda_home
from imagefactory.settings import from_environment
from imagefactory.system.engine import Engine

__all__ = ["machines", "start_machines"]


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """The engine of this machine (`make test` brings one up); images that tests made go again.

    The last of several test runs removes them, since another may still use its own.
    """
    state = from_environment(os.environ).state
    found = Engine.connect(os.environ, state)
    with (state / "e2e.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        yield found
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        _remove_images(found)


def _remove_images(found: Engine) -> None:
    made = ("cpu-two-", "cpu-broken-", "cpu-late-")
    of_flavors = [
        name
        for name in found.names("imagefactory/vllm")
        if name.rpartition(":")[2].startswith(made)
    ]
    # by name: an image of equal content may be somebody's, and goes only with its last name
    of_tests = [*found.names("imagefactory/test"), *found.names("imagefactory/test-address")]
    for name in (*of_tests, *of_flavors):
        found.untag(name)


@pytest.fixture(scope="session")
def cuda() -> Path:
    """The CUDA toolchain of the lock, for proofs that compile."""
    settings = from_environment(os.environ)
    locked = cuda_home.for_this_machine(store.read(ROOT / "wheels.lock"), "cuda13.0")
    assert locked is not None
    return cuda_home.prepare(locked, settings)


@pytest.fixture(scope="session")
def cpu_image(engine: Engine) -> str:
    """The cpu cell, built from the committed matrix (nothing is done if it is there already).

    The build has credentials for the index; tests look for them in what it made.
    """
    done = factory("build", "--matrix", "--select", "flavor=cpu", "--no-verify", environ=planted())
    assert done.code == 0, done.err
    return CPU


@pytest.fixture(scope="session")
def verification(cpu_image: str, tmp_path_factory: pytest.TempPathFactory) -> Verified:
    """The cpu image is verified once, as serving a model takes a minute of all cores."""
    junit = tmp_path_factory.mktemp("verified") / "report.xml"
    return Verified(factory("verify", cpu_image, "--json", "--junit", str(junit)), junit)


@pytest.fixture(scope="session")
def verified_cpu_image(cpu_image: str, verification: Verified) -> str:
    """The cpu image with a receipt."""
    assert verification.done.code == 0, verification.done.out + verification.done.err
    return cpu_image


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """A real registry on loopback with an empty store; gives its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    script = str(ROOT / "scripts" / "engine")
    subprocess.run(
        [script, "registry-up", port, str(tmp_path / "registry")],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    try:
        yield f"127.0.0.1:{port}"
    finally:
        subprocess.run([script, "registry-down", port], check=True)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the project's data whose matrix a test may change."""
    return copy_project(tmp_path / "project")


@pytest.fixture
def remote(engine: Engine, tmp_path: Path) -> Iterator[str]:
    """A builder with the remote driver.

    Its BuildKit is the engine's, reached as from another machine: by a socket.
    """
    with builder_of(engine, engine, tmp_path / "buildkit.sock") as name:
        yield name


@contextmanager
def builder_of(engine: Engine, other: Engine, path: Path) -> Iterator[str]:
    """A builder of ``engine`` whose BuildKit is that of ``other``, reached by a socket at ``path``.

    It ends when the other engine does.
    """
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen()
    running: list[subprocess.Popen[bytes]] = []

    def relay() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            running.append(other.dial_buildkit(connection.fileno()))
            connection.close()

    threading.Thread(target=relay, daemon=True).start()
    name = f"imagefactory-test-{secrets.token_hex(4)}"
    engine.create_builder(name, driver="remote", endpoint=f"unix://{path}")
    try:
        yield name
    finally:
        engine.remove_builder(name)
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        for process in running:
            process.terminate()
            process.wait()
