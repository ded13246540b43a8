"""Compilers: what their probe finds with made-up ones, and the faults that turn the check red."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.image_tree import ImageTree
from support.verify_fakes import CPU, Good
from support.verify_faults import Fault, red

from imagefactory.locking.lock import Resolution
from imagefactory.verifying.checks.compilers import probe
from imagefactory.verifying.probe_core import Context
from imagefactory.verifying.receipt import Outcome

#: Stands in for nvcc: keeps the intermediate code if it is asked to.
NVCC = """#!/bin/sh
echo "$*" > arguments
for word; do [ "$word" != --keep ] || echo "{instruction}" > k.ptx; done
"""


def good(locked: Resolution) -> dict[str, Any]:
    """The facts of a good image."""
    if not locked.torch.cuda:
        return {"seconds": 0.0}
    return {
        "architecture": "sm_121a",
        "missing": [],
        "ptxas": {"code": 0, "output": ""},
        "nvcc": {"code": 0, "output": ""},
        "hardware_conversions": 1,
        "seconds": 3.0,
    }


FAULTS = (
    Fault(
        check="toolchain",
        name="a variable with a path that does not exist",
        breaks=lambda image: image.facts["compilers"].update(missing=["CUDA_HOME=/opt/cuda"]),
        says="CUDA_HOME=/opt/cuda does not exist",
    ),
    Fault(
        check="toolchain",
        name="an nvcc that fails",
        breaks=lambda image: image.facts["compilers"]["nvcc"].update(
            code=1, output="k.cu:1\nfatal error: nvrtc.h: No such file"
        ),
        says="nvcc for sm_121a exits 1: fatal error: nvrtc.h",
    ),
    Fault(
        check="toolchain",
        name="a ptxas that does not exist",
        breaks=lambda image: image.facts["compilers"]["ptxas"].update(
            code=None, output="No such file or directory"
        ),
        says="ptxas for sm_121a does not run: No such file or directory",
    ),
    Fault(
        check="toolchain",
        name="FP4 in software",
        breaks=lambda image: image.facts["compilers"].update(
            architecture="sm_121", hardware_conversions=0
        ),
        says="nvcc for sm_121 makes no FP4 instruction",
    ),
    Fault(
        check="toolchain",
        name="no facts although the image has a toolchain",
        breaks=lambda image: image.facts.update(compilers={"seconds": 0.0}),
        says="cannot be judged",
    ),
)


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_check_goes_red_for_its_fault_and_says_why(fault: Fault) -> None:
    assert fault.says in red(fault)


@pytest.mark.programs
def test_an_image_without_a_toolchain_has_nothing_to_check(tmp_path: Path) -> None:
    image = ImageTree(tmp_path)
    image.manifest(toolchain=None)
    assert image.facts("compilers").keys() == {"seconds"}
    result = Good(torch=CPU).results()["toolchain"]
    assert (result.outcome, result.detail) == (Outcome.PASS, "no toolchain in this image")


def test_the_toolkit_of_a_base_is_checked_like_a_toolchain() -> None:
    image = Good()
    image.manifest.update(toolchain=None, cuda_home="/usr/local/cuda")
    assert "nvcc in /usr/local/cuda compiles FP4" in image.results()["toolchain"].detail
    image.facts["compilers"].update(missing=["CUDA_HOME=/usr/local/cuda"])
    assert image.results()["toolchain"].outcome is Outcome.FAIL


def compilers(folder: Path, instruction: str) -> dict[str, str]:
    """The environment of an image with made-up compilers."""
    binaries = folder / "cuda" / "bin"
    binaries.mkdir(parents=True)
    (binaries / "nvcc").write_text(NVCC.format(instruction=instruction))
    (binaries / "ptxas").write_text("#!/bin/sh\necho wrong\nexit 255\n")
    for path in binaries.iterdir():
        path.chmod(0o755)
    return {
        "CUDA_HOME": str(folder / "cuda"),
        "TRITON_PTXAS_PATH": str(binaries / "ptxas"),
        "TORCH_CUDA_ARCH_LIST": "12.1a;12.0",
    }


@pytest.mark.programs
def test_compilers_are_run_for_the_first_architecture_and_their_code_is_searched_for_fp4(
    tmp_path: Path,
) -> None:
    image = ImageTree(tmp_path)
    image.manifest(toolchain={"nvidia-cuda-nvcc": "13.0.88"})
    instruction = "cvt.rn.satfinite.e2m1x2.f32 %rs1, %f2, %f1;"
    found = image.facts("compilers", **compilers(tmp_path, instruction))
    assert found["architecture"] == "sm_121a"
    assert found["missing"] == ["TRITON_PTXAS_BLACKWELL_PATH="]
    assert found["nvcc"] == {"code": 0, "output": ""}
    assert found["ptxas"] == {"code": 255, "output": "wrong"}
    assert found["hardware_conversions"] == 1
    image.manifest(toolchain=None, cuda_home="/usr/local/cuda")
    assert "ptxas" in image.facts("compilers", CUDA_HOME="/nonexistent", TRITON_PTXAS_PATH="/x")


@pytest.mark.parametrize(("files_judged", "result"), [(False, "-c"), (True, "-cubin")])
def test_the_host_s_half_is_left_out_where_the_files_are_judged_from_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files_judged: bool, result: str
) -> None:
    ran: list[Sequence[str]] = []

    def run(argv: Sequence[str], **_: object) -> dict[str, object]:
        ran.append(argv)
        return {"code": 0, "output": ""}

    monkeypatch.setattr(Context, "run", staticmethod(run))
    monkeypatch.setenv("CUDA_HOME", "/cuda")
    manifest = {"toolchain": {"nvidia-cuda-nvcc": "13.0.88"}}
    probe.facts(Context(site=tmp_path, home=tmp_path, manifest=manifest, files_judged=files_judged))
    (compiled,) = [argv for argv in ran if argv[0] == "/cuda/bin/nvcc"]
    assert compiled[1] == result


@pytest.mark.programs
def test_compilers_that_are_not_there_are_a_finding(tmp_path: Path) -> None:
    image = ImageTree(tmp_path)
    image.manifest(toolchain={"nvidia-cuda-nvcc": "13.0.88"})
    found = image.facts("compilers", CUDA_HOME="/nonexistent", TRITON_PTXAS_PATH="/nonexistent")
    assert found["nvcc"]["code"] is found["ptxas"]["code"] is None
    assert "CUDA_HOME=/nonexistent" in found["missing"]
    assert found["hardware_conversions"] == 0
