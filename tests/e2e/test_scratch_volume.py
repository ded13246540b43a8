"""The volume that servers of one verification share for what they compile, on a real engine."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from imagefactory.system.engine import Engine, Limits

pytestmark = pytest.mark.e2e

FOLDER = "/root/.cache/cuda"
#: A verification that is killed while it has a volume.
KILLED = """
import os, signal
from imagefactory.settings import from_environment
from imagefactory.system.engine import Engine
with Engine.connect(os.environ, from_environment(os.environ).state).volume() as name:
    print(name, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def _shell(engine: Engine, image: str, volume: str, script: str) -> str:
    done = engine.run(
        image,
        ["-c", script],
        platform=engine.platform,
        entrypoint="sh",
        network="none",
        volumes=[(volume, FOLDER)],
        limits=Limits(memory=1 << 30),
        timeout=120,
    )
    assert done.ok, done.err
    return done.out.strip()


def test_what_one_server_compiles_is_there_for_the_next_and_gone_afterwards(
    cpu_image: str, engine: Engine
) -> None:
    with engine.volume() as volume:
        _shell(engine, cpu_image, volume, f"echo kernel > {FOLDER}/compiled")
        assert _shell(engine, cpu_image, volume, f"ls {FOLDER}") == "compiled"
    assert _is_new(engine, cpu_image, volume)


def test_the_volume_of_a_killed_verification_is_removed_by_the_next_one(
    cpu_image: str, engine: Engine
) -> None:
    words = [sys.executable, "-c", KILLED]
    killed = subprocess.run(words, check=False, capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    left = killed.stdout.strip()
    _shell(engine, cpu_image, left, f"echo kernel > {FOLDER}/compiled")
    with engine.volume():
        assert _is_new(engine, cpu_image, left)


def _is_new(engine: Engine, image: str, volume: str) -> bool:
    """Whether there was no such volume: Docker makes one that it is asked for."""
    inside = _shell(engine, image, volume, f"ls {FOLDER}")
    engine.remove_volume(volume)
    return not inside
