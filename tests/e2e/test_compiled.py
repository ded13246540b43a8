"""Parts of vLLM compiled from its real, patched sources by its own CMake files.

And a wheel with them in it.
"""

from __future__ import annotations

import json
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest
from support.e2e import Completed, copy_project, factory

from imagefactory.locking import store
from imagefactory.system.engine import Engine

pytestmark = pytest.mark.e2e

FLAVOR = "gb10-compiled"
#: The smallest of vLLM's extensions, one file of C++: the road is the same as for the large ones.
EXTENSION = "cumem_allocator"
PATCHES = ("vllm/mtp-exclusion", "vllm/e2m1-software")
QUANT = "csrc/libtorch_stable/quantization/fp4/nvfp4_quant_kernels.cu"
FLAVOR_TEXT = f"""\
  {FLAVOR}:
    summary: with parts of vLLM that are compiled
    base: trixie
    requirements: ["vllm=={{vllm}}", "torch=={{torch}}", "flashinfer-python=={{flashinfer}}"]
    patches: [{", ".join(PATCHES)}]
    toolchain: cuda13.0
    driver: "580.95"
    env: {{TORCH_CUDA_ARCH_LIST: 12.1a}}
    build:
      binaries: compiled
      tools: vllm-compile
      extensions: [{EXTENSION}]
      sources:
        VLLM_CUTLASS_SRC_DIR: wheel:flashinfer-python/flashinfer/data/cutlass

# Compilers, each"""
TOOLS = """\
    platforms: [linux/amd64, linux/arm64]
  vllm-compile:
    requirements:
      - setuptools==80.9.0
      - setuptools-rust==1.12.0
      - setuptools-scm==9.2.2
      - wheel==0.45.1
      - packaging==25.0
      - cmake==4.4.4
      - ninja==1.13.0
      - nvidia-cuda-cuobjdump==13.5.37
      - nvidia-cuda-nvdisasm==13.5.37
    platforms: [linux/amd64, linux/arm64]

defaults"""


def _cell(platform: str) -> str:
    return (
        f"  - {{flavor: {FLAVOR}, platform: {platform}, python: '3.13', cuda: '13.0', "
        "channel: cu130, "
        "torch: '2.11.0', vllm: '0.22.1', flashinfer: '0.6.12'}"
    )


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, engine: Engine) -> Path:
    folder = copy_project(
        tmp_path_factory.mktemp("compiled") / "project",
        ("# Compilers, each", FLAVOR_TEXT),
        ("    platforms: [linux/amd64, linux/arm64]\n\ndefaults", TOOLS),
        ("exclude: []", f"{_cell(engine.platform)}\n\nexclude: []"),
        (
            'when: {flavor: gb10, vllm: "0.22.1"}',
            f'when: {{flavor: [gb10, {FLAVOR}], vllm: "0.22.1"}}',
        ),
    )
    done = factory("lock", cwd=folder)
    assert done.code == 0, done.err
    return folder


def run(project: Path, *options: str) -> Completed:
    return factory("wheel", "--select", f"flavor={FLAVOR}", *options, cwd=project)


def tried(done: Completed) -> dict[str, dict[str, Any]]:
    return {row["target"]: row for row in done.json["units"]}


def matching(row: dict[str, Any]) -> int:
    return sum(code["matching"] for code in row["code"].values())


TRY = ("--try", QUANT, "--target", "sm_121a", "--target", "sm_121", "--count", "E2M1", "--json")


def test_a_patched_kernel_is_compiled_for_a_gb10_with_the_instruction_and_for_a_plain_target_without(
    project: Path,
) -> None:
    done = run(project, *TRY)
    assert done.code == 0, done.err
    rows = tried(done)
    assert {row["error"] for row in rows.values()} == {""}
    assert rows["sm_121a"]["code"].keys() == {"sm_121a"}
    assert matching(rows["sm_121a"]) > 0
    assert matching(rows["sm_121"]) == 0
    assert rows["sm_121"]["code"]["sm_121"]["instructions"] > 100
    assert {row["name"]: row["state"] for row in done.json["patches"]} == dict.fromkeys(
        PATCHES, "needed"
    )


def test_without_the_patch_the_plain_target_is_refused_and_the_other_one_is_as_before(
    project: Path,
) -> None:
    with_patch = matching(tried(run(project, *TRY))["sm_121a"])
    file = project / "matrix.yaml"
    kept = file.read_text()
    try:
        file.write_text(kept.replace(", vllm/e2m1-software]", "]"))
        done = run(project, *TRY)
    finally:
        file.write_text(kept)
    assert done.code == 1
    assert "unit-failed" in done.err
    rows = tried(done)
    assert "not supported" in rows["sm_121"]["error"]
    assert matching(rows["sm_121a"]) == with_patch


def test_a_pattern_without_units_lists_the_available_ones(project: Path) -> None:
    done = run(project, "--try", "csrc/nvfp5_*.cu")
    assert done.code == 1
    assert "no unit matches csrc/nvfp5_*.cu" in done.err
    assert QUANT in done.err


def test_it_is_not_compiled_on_another_platform(project: Path, engine: Engine) -> None:
    other = {"linux/amd64": "linux/arm64", "linux/arm64": "linux/amd64"}[engine.platform]
    file = project / "matrix.yaml"
    kept = file.read_text()
    try:
        file.write_text(kept.replace(_cell(engine.platform), _cell(other)))
        assert factory("lock", cwd=project).code == 0
        done = run(project)
    finally:
        file.write_text(kept)
        assert factory("lock", cwd=project).code == 0
    assert done.code == 3
    assert "builder-platform" in done.err
    assert "--builder" in done.err


def test_the_wheel_is_the_official_one_but_for_the_patches_and_the_extension(project: Path) -> None:
    done = run(project, "--json")
    assert done.code == 0, done.err
    (row,) = done.json
    assert row["patches"] == dict.fromkeys(PATCHES, "needed")
    built = store.read(project / "wheels.lock").built_for(row["key"])
    assert built is not None
    assert built.replaces
    (official,) = (Path(row["wheel"]).parents[1] / built.replaces).glob("*.whl")
    ours, theirs = contents(Path(row["wheel"])), contents(official)
    assert ours.keys() == theirs.keys()
    libraries = {name for name in ours if name.endswith(".so")}
    assert len(libraries) > 5
    assert {name for name in libraries if ours[name] != theirs[name]} == {
        f"vllm/{EXTENSION}.abi3.so"
    }
    again = run(project, "--again", "--json")
    assert again.code == 0, again.err
    assert again.json[0]["sha256"] == row["sha256"]


KERNEL = """\
namespace {
template <class T> __global__ void twice(T* values) { values[threadIdx.x] *= 2; }
}
void launch(float* values) { twice<float><<<1, 32>>>(values); }
"""


def test_what_two_runs_of_nvcc_write_is_the_same_once_it_is_stripped(
    cuda: Path, tmp_path: Path
) -> None:
    (tmp_path / "k.cu").write_text(KERNEL)
    nvcc = [
        str(cuda / "bin/nvcc"),
        "-gencode",
        "arch=compute_121a,code=sm_121a",
        "-Xcompiler=-fPIC",
        "-c",
        "k.cu",
    ]
    for name in ("a", "b"):
        subprocess.run([*nvcc, "-o", f"{name}.o"], cwd=tmp_path, check=True)
        subprocess.run(
            ["g++", "-shared", "-nostdlib", "-o", f"{name}.so", f"{name}.o"],
            cwd=tmp_path,
            check=True,
        )
    assert (tmp_path / "a.so").read_bytes() != (tmp_path / "b.so").read_bytes()
    for name in ("a", "b"):
        subprocess.run(["strip", f"{name}.so"], cwd=tmp_path, check=True)
    assert (tmp_path / "a.so").read_bytes() == (tmp_path / "b.so").read_bytes()


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}


def test_an_image_says_which_patches_are_compiled_in(project: Path, tmp_path: Path) -> None:
    assert run(project).code == 0
    done = factory(
        "render", "--select", f"flavor={FLAVOR}", "--out", str(tmp_path / "out"), cwd=project
    )
    assert done.code == 0, done.err
    (series,) = (tmp_path / "out").glob(f"{FLAVOR}*/patches/series.json")
    rows = {row["name"]: row for row in json.loads(series.read_text())}
    assert rows["vllm/e2m1-software"] == {
        "name": "vllm/e2m1-software",
        "compiled": [f"vllm/{EXTENSION}*.so"],
    }
    assert rows["vllm/mtp-exclusion"]["in_wheel"] == "yes"


@pytest.mark.large
def test_an_image_with_what_was_compiled_is_built_and_verified(
    project: Path, engine: Engine
) -> None:
    wheel = run(project, "--json").json[0]
    done = factory("build", "--matrix", "--select", f"flavor={FLAVOR}", cwd=project)
    assert done.code == 0, done.err
    tag = f"imagefactory/vllm:{FLAVOR}-vllm0.22.1"
    try:
        found = factory("inspect", tag, "--json").json
    finally:
        for name in (tag, f"{tag}-torch2.11.0-cu130"):
            engine.untag(name)
    assert found["patches"] == {
        "vllm/mtp-exclusion": "in the wheel",
        "vllm/e2m1-software": "compiled in",
    }
    assert found["hashes"]["vllm"] == wheel["sha256"]
    outcomes = {check["name"]: check["outcome"] for check in found["receipt"]["checks"]}
    assert (
        outcomes["extensions-load"]
        == outcomes["patches-present"]
        == outcomes["files-complete"]
        == "pass"
    )
    assert "fail" not in outcomes.values()
