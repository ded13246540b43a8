"""The volume that servers of one verification share for what they compile, on a real engine."""

from __future__ import annotations

import subprocess
import sys

import pytest

from imagefactory.system.engine import Engine, Limits, owner

pytestmark = pytest.mark.e2e

FOLDER = "/root/.cache/cuda"


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


def _volumes(engine: Engine) -> list[str]:
    return engine._docker.must("volume", "ls", "--format", "{{.Name}}").splitlines()


def test_what_one_server_compiles_is_there_for_the_next_and_gone_afterwards(
    cpu_image: str, engine: Engine
) -> None:
    with engine.volume() as volume:
        _shell(engine, cpu_image, volume, f"echo kernel > {FOLDER}/compiled")
        assert _shell(engine, cpu_image, volume, f"cat {FOLDER}/compiled") == "kernel"
        assert volume in _volumes(engine)
    assert volume not in _volumes(engine)


def test_the_volume_of_a_killed_verification_is_removed_by_the_next_one(engine: Engine) -> None:
    code = "from imagefactory.system.engine import owner; print(owner.mine())"
    dead = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    left = "imagefactory-left-by-a-kill"
    engine._docker.must("volume", "create", "--label", f"{owner.LABEL}={dead.stdout.strip()}", left)
    with engine.volume() as volume:
        assert {volume, left} & set(_volumes(engine)) == {volume}
