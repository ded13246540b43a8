"""A whole GB10 cell: arm64, CUDA, ten gigabytes; built on whatever machine this is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.e2e import derive, factory

from imagefactory.system import platforms
from imagefactory.system.engine import Engine

pytestmark = [pytest.mark.e2e, pytest.mark.large]

GB10 = "imagefactory/vllm:gb10-vllm0.22.1-torch2.11.0-cu130"
SITE = "/opt/venv/lib/python3.13/site-packages"


@pytest.fixture(scope="module")
def gb10_image(engine: Engine) -> str:
    done = factory("build", "--matrix", "--select", "vllm=0.22.1", "--no-verify")
    assert done.code == 0, done.err
    return GB10


def checks(out: str) -> dict[str, dict[str, str]]:
    (receipt,) = json.loads(out)
    return {check["name"]: check for check in receipt["checks"]}


def test_an_arm64_image_is_built_and_verified_with_what_needs_a_gpu_skipped_by_name(
    gb10_image: str,
) -> None:
    done = factory("verify", gb10_image, "--json")
    seen = checks(done.out)
    assert done.code == 0, done.err
    assert "2.11.0+cu130" in seen["torch-identity"]["detail"]
    assert seen["extensions-load"]["outcome"] == "pass"
    if not platforms.is_native("linux/arm64"):
        assert "its layers were read for it" in seen["torch-files"]["detail"]
        assert "run on this machine" in seen["patches-effective"]["detail"]
    assert {name for name, check in seen.items() if check["outcome"] == "skip"} == {
        n for n in seen if "server" in n
    }


def test_a_cpu_torch_forced_into_the_image_is_seen(
    gb10_image: str, engine: Engine, tmp_path: Path
) -> None:
    argv = [
        "uv",
        "pip",
        "install",
        "--target",
        str(tmp_path / "torch"),
        "--no-deps",
        "--python-version",
        "3.13",
    ]
    argv += [
        "--python-platform",
        "aarch64-manylinux_2_40",
        "--only-binary",
        ":all:",
        "torch==2.10.0",
    ]
    subprocess.run([sys.executable, "-m", *argv], check=True)
    swap = f"RUN rm -r {SITE}/torch {SITE}/torch-*\nCOPY torch {SITE}/\n"
    done = factory(
        "verify",
        derive(engine, tmp_path, gb10_image, "imagefactory/test:cpu-torch", swap),
        "--json",
    )
    seen = checks(done.out)
    assert done.code == 1
    assert seen["torch-identity"]["outcome"] == seen["extensions-load"]["outcome"] == "fail"
    assert "2.10.0+cpu" in done.err
    assert "libtorch_cuda.so" in done.err
