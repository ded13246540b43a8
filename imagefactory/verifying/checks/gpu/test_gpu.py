"""GPU: the faults that turn its checks red, planted in what an NVIDIA H200 really reported."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from gpu.records import load_all
from support.verify_fakes import Good
from support.verify_faults import Fault, red

from imagefactory.verifying.gpu.running import GpuRun
from imagefactory.verifying.receipt import Outcome

RECORD = load_all()["nvidia-h200-2026-11-23"]
#: Capability of a GPU that has everything.
SPARK = [12, 1]


def reported(image: Good, change: Callable[[dict[str, Any]], object] = lambda _: None) -> None:
    report = copy.deepcopy(RECORD["probes"])
    change(report["probes"])
    image.gpu = GpuRun(report=report)


def facts(name: str, **changes: Any) -> Callable[[Good], None]:
    return lambda image: reported(image, lambda probes: probes[name]["facts"].update(changes))


def left_out(name: str) -> Callable[[Good], None]:
    """A GPU that has what the probe says is unsupported."""

    def change(probes: dict[str, Any]) -> None:
        probes["identity"]["facts"]["capability"] = SPARK
        probes[name]["facts"] = {"unsupported": "no instruction"}

    return lambda image: reported(image, change)


WRONG = [{"shape": [4, 4], "elements": 16, "wrong": 1}]
FAULTS = tuple(
    Fault(check=f"gpu-{name}", name=what, breaks=breaks, says=says)
    for name, what, breaks, says in (
        ("identity", "no code", facts("identity", archs=["sm_80"]), "no code for sm_90"),
        ("identity", "old driver", facts("identity", driver_cuda=[12, 8]), "the driver is for"),
        ("identity", "no sum", facts("identity", sum=0.0), "1000 times 1 + 1 is 0"),
        ("gemm-bf16", "one element", facts("gemm-bf16", exact=WRONG), "1 of 16 elements"),
        ("gemm-bf16", "inexact", facts("gemm-bf16", error=0.1), "relative error 0.1"),
        ("gemm-bf16", "not a number", facts("gemm-bf16", error=float("nan")), "relative error nan"),
        ("gemm-bf16", "nothing", facts("gemm-bf16", exact=[]), "nothing was compared"),
        ("gemm-fp8", "one element", facts("gemm-fp8", exact=WRONG), "1 of 16 elements"),
        ("gemm-fp4", "left out", left_out("gemm-fp4"), "left out on sm_121"),
        ("triton", "other code", facts("triton", arch=80), "compiled for sm_80"),
        ("triton", "wrong sums", facts("triton", wrong=3), "3 of 100 elements wrong"),
        ("flashinfer", "not compiled", facts("flashinfer", compiled=[]), "nothing was compiled"),
        ("flashinfer", "wrong", facts("flashinfer", error=1.4), "relative error of 1.4"),
        ("e2m1-software", "ties", facts("e2m1-software", wrong=2), "2 inputs are wrong"),
        ("e2m1-software", "half", facts("e2m1-software", inputs=1 << 31), "of 4294967296 inputs"),
        ("e2m1-hardware", "left out", left_out("e2m1-hardware"), "left out on sm_121"),
        ("memory", "lost", facts("memory", wrong=1), "1 words of 1.0 GiB"),
        (
            "memory",
            "contradiction",
            facts("memory", integrated=True, cuda_total=1 << 30),
            "unified, but",
        ),
    )
)


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_check_goes_red_for_its_fault_and_says_why(fault: Fault) -> None:
    assert fault.says in red(fault)


def test_what_a_gpu_lacks_is_excused_and_what_the_image_lacks_is_not() -> None:
    image = Good()
    reported(image, lambda probes: probes["flashinfer"].update(facts={"missing": "no nvcc"}))
    results = image.results()
    assert results["gpu-gemm-fp4"].outcome is Outcome.SKIP
    assert not results["gpu-gemm-fp4"].required
    assert results["gpu-flashinfer"].outcome is Outcome.SKIP
    assert results["gpu-flashinfer"].required


def test_unified_memory_is_reported_by_the_kernel_where_nvidia_smi_says_nothing() -> None:
    image = Good()
    total = 128 << 30
    facts("memory", integrated=True, cuda_total=total, meminfo_total=total, smi_total="[N/A]")(
        image
    )
    assert "nvidia-smi says [N/A]" in image.results()["gpu-memory"].detail


def test_a_probe_that_did_not_report_fails() -> None:
    image = Good()
    image.gpu = GpuRun(report=None, error="the report of the probes is not JSON")
    failed = {n for n, one in image.results().items() if one.outcome is Outcome.FAIL}
    assert failed == {name for name in image.results() if name.startswith("gpu-")}
