"""The probes of a GPU, on GPUs that are made up: right ones, and ones that compute wrong."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gpu.records import load_all
from support import ROOT, small_torch
from support.small_torch import Tensor, tensor

from imagefactory.verifying.gpu import judging
from imagefactory.verifying.gpu.judging import FAIL, PASS
from imagefactory.verifying.gpu.probes import (
    e2m1,
    flashinfer_kernel,
    gemm,
    identity,
    memory,
    triton_kernel,
)

PROBES = ROOT / "imagefactory" / "verifying" / "gpu" / "probes"
#: What the same probes reported on an NVIDIA H200.
H200 = {
    n: one["facts"] for n, one in load_all()["nvidia-h200-2026-11-23"]["probes"]["probes"].items()
}
HOPPER, SPARK = (9, 0), (12, 1)


def test_every_fault_that_was_planted_on_a_real_gpu_can_be_planted() -> None:
    modules = (e2m1, flashinfer_kernel, gemm, identity, memory, triton_kernel)
    faults = {name: plants for one in modules for name, plants in one.FAULTS.items()}
    planted = {f"{name}:{plant}" for name, plants in faults.items() for plant in plants}
    assert planted == {*load_all()["nvidia-h200-2026-11-23"]["probes"]["planted"]}
    assert faults.keys() == {name for one in modules for name in one.PROBES} == H200.keys()


def judged(name: str, facts: Any, capability: tuple[int, int] = SPARK) -> str:
    probes = {
        "identity": {"facts": {"capability": capability}},
        name: {"facts": facts, "error": ""},
    }
    return judging.judge(name, {"probes": probes}).outcome


def every_fault_is_found(
    module: ModuleType,
    name: str,
    probe: Callable[[str], dict[str, Any]],
    capability: tuple[int, int] = SPARK,
) -> None:
    """A probe passes, and fails with each fault that may be planted in it."""
    assert judged(name, probe(""), capability) == PASS
    assert module.FAULTS[name]
    for plant in module.FAULTS[name]:
        assert judged(name, probe(plant), capability) == FAIL, plant


#: The first GPUs that have what a product needs.
FIRST = {"gemm-bf16": (8, 0), "gemm-fp8": (8, 9), "gemm-fp4": (10, 0)}


#: A fault is in every element, and numpy takes a second for the shapes of the probe.
SMALL = ((64, 64, 128), (1, 64, 128), (17, 80, 128))


@cache
def product(name: str, plant: str) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(gemm, "SHAPES", SMALL if plant else gemm.SHAPES)
        return gemm.PROBES[name](small_torch.gpu(capability=FIRST[name]), plant)


@pytest.mark.parametrize("name", gemm.PROBES)
def test_products_of_a_right_gpu_are_right_and_every_fault_is_found(name: str) -> None:
    every_fault_is_found(gemm, name, lambda plant: product(name, plant), FIRST[name])


@pytest.mark.parametrize("name", ["gemm-bf16", "gemm-fp8"])
def test_products_have_the_shapes_and_the_error_that_a_real_gpu_had(name: str) -> None:
    found = product(name, "")
    assert found["error"] == pytest.approx(H200[name]["error"], rel=0.01)
    assert found["exact"] == H200[name]["exact"]


def test_fp4_products_take_both_halves_of_bytes_and_several_tiles_of_scales() -> None:
    found = product("gemm-fp4", "")["exact"]
    assert [one["shape"] for one in found] == [[256, 512], [128, 128]]
    assert [(one["elements"], one["wrong"]) for one in found] == [(131072, 0), (16384, 0)]


def test_only_a_gpu_without_the_instructions_is_excused() -> None:
    for name, capability in (("gemm-fp8", (8, 6)), ("gemm-fp4", HOPPER)):
        kind, (major, minor) = name[-3:].upper(), capability
        found = gemm.PROBES[name](small_torch.gpu(capability=capability), "")
        assert found == {"unsupported": f"sm_{major}{minor} has no {kind} instructions"}


def test_a_gpu_with_one_wrong_element_or_inexact_sums_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = small_torch.tensor

    def spoilt(values: Any, kind: str = "", place: str = "cpu") -> Tensor:
        made = right(values, kind, place)
        if (kind, place, made.shape) == ("bfloat16", "cuda", (17, 80)):
            made.view(np.ndarray)[-1, -1] += 1
        if (kind, place, made.shape) == ("bfloat16", "cuda", (256, 256)):
            made.view(np.ndarray)[:] *= 1.02
        return made

    monkeypatch.setattr(small_torch, "tensor", spoilt)
    found = gemm.bf16(small_torch.gpu(), "")
    assert [one["wrong"] for one in found["exact"]] == [0, 0, 1]
    assert 0.01 < found["error"] < 0.03


def test_a_triton_kernel_masks_what_no_tile_fills(monkeypatch: pytest.MonkeyPatch) -> None:
    from imagefactory.verifying.gpu.probe_runner import load  # noqa: PLC0415

    assert load(PROBES / "triton_kernel.py").run(None, "") == {
        "missing": "ModuleNotFoundError: No module named 'triton'"
    }
    for name, module in small_torch.triton(121).items():
        monkeypatch.setitem(sys.modules, name, module)
    kernel = load(PROBES / "triton_kernel.py")
    torch = small_torch.gpu()
    every_fault_is_found(kernel, "triton", lambda plant: kernel.PROBES["triton"](torch, plant))
    on_spark = {"arch": 121, "capability": [12, 1]}
    assert kernel.run(torch, "") == {**H200["triton"], **on_spark}


@pytest.mark.parametrize("compiled", [True, False])
def test_a_kernel_of_flashinfer_is_compiled_and_compared(
    monkeypatch: pytest.MonkeyPatch, *, compiled: bool
) -> None:
    torch = small_torch.gpu()

    def norm(rows: Any, weight: Any, epsilon: float) -> Any:
        assert rows.place == weight.place == "cuda"
        assert epsilon == 1e-6
        exact = np.asarray(rows, np.float64)
        exact = exact / np.sqrt((exact**2).mean(axis=1, keepdims=True) + epsilon)
        folder = Path(os.environ["FLASHINFER_WORKSPACE_BASE"]) / "ops"
        folder.mkdir()
        (folder / "norm.so" if compiled else folder / "norm.cu").touch()
        return tensor(exact * np.asarray(weight, np.float64), "bfloat16", "cuda")

    library = SimpleNamespace(__version__="0.6.12", norm=SimpleNamespace(rmsnorm=norm))
    monkeypatch.setitem(sys.modules, "flashinfer", library)
    monkeypatch.setenv("FLASHINFER_WORKSPACE_BASE", "")
    monkeypatch.setattr(shutil, "which", lambda *_, **__: "/usr/bin/nvcc")
    if not compiled:
        found = flashinfer_kernel.run(torch, "")
        assert found["compiled"] == []
        assert judged("flashinfer", found) == FAIL
        return
    every_fault_is_found(
        flashinfer_kernel, "flashinfer", lambda plant: flashinfer_kernel.run(torch, plant)
    )
    found = flashinfer_kernel.run(torch, "")
    assert found.pop("error") == pytest.approx(H200["flashinfer"]["error"], rel=0.02)
    assert found == {key: value for key, value in H200["flashinfer"].items() if key != "error"}


def test_a_missing_flashinfer_or_compiler_is_no_wrong_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = list[Any]()
    monkeypatch.setenv("FLASHINFER_WORKSPACE_BASE", "")
    monkeypatch.setenv("CUDA_HOME", "/cuda")
    monkeypatch.setattr(shutil, "which", lambda name, path=None: asked.append((name, path)))
    missing = flashinfer_kernel.run(None, "")["missing"]
    assert missing == "ModuleNotFoundError: No module named 'flashinfer'"
    monkeypatch.setitem(sys.modules, "flashinfer", SimpleNamespace())
    assert "no nvcc" in flashinfer_kernel.run(None, "")["missing"]
    monkeypatch.delenv("CUDA_HOME")
    flashinfer_kernel.run(None, "")
    nowhere = ("nvcc", None)
    assert asked == [nowhere, ("nvcc", "/cuda/bin")] * 2 + [
        nowhere,
        ("nvcc", "/usr/local/cuda/bin"),
    ]


class Compiled:
    """What NVRTC makes of a program: its conversion is tried at every threshold."""

    MIDDLES = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
    VALUES = np.array([*MIDDLES, 0.0, 0.5, 1, 6, 7, np.inf], np.float32).view(np.uint32)
    NAN = 0x7FC00000

    def __init__(self, program: str) -> None:
        for line in program.splitlines():
            assert re.match(r'( |typedef |__device__ |extern "C" |//|}|$)', line), line
        assert "CONVERT" not in program
        (function,) = re.findall(r"if \((\w+)\(x\) != reference\(x\)\)", program)
        assert f"uint32_t {function}(float x) {{" in program
        self.swapped = '"f"(x), "f"(0.0f)' in program
        self.steps = re.findall(r"\(ax (>=?) ([\d.]+)f\)", program)
        self.signed_nan = "return 0x7 |" in program
        near = {int(bits) + step for bits in self.VALUES for step in (-1, 0, 1)}
        magnitudes = {bits for bits in near if 0 <= bits <= 0x7F800000} | {self.NAN}
        self.inputs = sorted(magnitudes | {bits | 1 << 31 for bits in magnitudes})

    def convert(self, bits: int) -> int:
        sign, size = bits >> 28 & 8, float(np.uint32(bits & 0x7FFFFFFF).view(np.float32))
        if self.swapped:
            return right(bits) << 4
        if not self.steps:
            return right(bits)
        if np.isnan(size):
            return 7 | sign if self.signed_nan else 7
        return sign | sum(
            size >= float(least) if kind == ">=" else size > float(least)
            for kind, least in self.steps
        )

    def __call__(self, *, grid: Any, block: Any, args: Any) -> None:
        assert np.prod(grid) * np.prod(block) >= 1 << 16
        found, (first, last) = args[0], args[1].tolist()
        assert {one.place for one in args} == {"cuda"}
        assert {one.kind for one in args} == {"int64"}
        inputs = (bits for bits in self.inputs if first <= bits < last)
        wrong = [bits for bits in inputs if self.convert(bits) != right(bits)]
        found[0] += last - first
        found[1] += len(wrong)
        found[2] = min([int(found[2]), *wrong])


def right(bits: int) -> int:
    """The code of E2M1 that is nearest, and even where two are."""
    size = float(np.uint32(bits & 0x7FFFFFFF).view(np.float32))
    if np.isnan(size):
        return 7
    values = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
    code = min(range(8), key=lambda c: (abs(min(size, 6.0) - values[c]), c % 2))
    return code | bits >> 28 & 8


@pytest.mark.parametrize("name", e2m1.PROBES)
def test_conversions_are_tried_for_all_inputs_and_every_fault_is_found(name: str) -> None:
    targets = list[Any]()

    def compile_kernel(program: str, entry: str, *, compute_capability: str | None) -> Compiled:
        assert f'extern "C" __global__ void {entry}(' in program
        targets.append(compute_capability)
        return Compiled(program)

    torch = small_torch.gpu(_compile_kernel=compile_kernel)
    every_fault_is_found(e2m1, name, lambda plant: e2m1.PROBES[name](torch, plant))
    assert e2m1.PROBES[name](torch, "") == H200["e2m1-software"]
    assert set(targets) == {None if name == "e2m1-software" else "121a"}
    first = {plant: e2m1.PROBES[name](torch, plant)["first_wrong"] for plant in e2m1.FAULTS[name]}
    known = {"ties-away": "0x3e800000", "negative-nan": "0xffc00000", "half-of-inputs": ""}
    known["swapped-nibbles"] = "0x3e800001"
    assert first == {plant: known[plant] for plant in first}


def test_a_conversion_that_cannot_be_tried_says_why() -> None:
    old = small_torch.gpu(capability=HOPPER)
    assert e2m1.hardware(old, "") == H200["e2m1-hardware"]
    assert e2m1.software(old, "") == {
        "missing": "torch 2.11.0+cu130 cannot compile a kernel (2.9 can)"
    }
    first = small_torch.gpu(
        capability=(10, 0), _compile_kernel=lambda text, *_, **__: Compiled(text)
    )
    assert judged("e2m1-hardware", e2m1.hardware(first, ""), (10, 0)) == PASS


def test_memory_has_the_figures_of_the_kernel_of_cuda_and_of_nvidia_smi(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert memory.ELEMENTS * 8 == 1 << 30
    text = "MemTotal:       1000 kB\nMemAvailable:    900 kB\nHugePages_Total:       0\n"
    (tmp_path / "meminfo").write_text(text)
    ran = list[Any]()

    def run(command: list[str], **options: Any) -> Any:
        ran.append((command, options["timeout"]))
        return SimpleNamespace(stdout="143771 MiB\n143771 MiB\n")

    properties = SimpleNamespace(is_integrated=1)
    torch = small_torch.gpu(
        mem_get_info=lambda: (10, 1024_000), get_device_properties=[properties].__getitem__
    )
    monkeypatch.setattr(memory, "ELEMENTS", 64)
    monkeypatch.setattr(memory, "Path", lambda name: tmp_path / Path(name).relative_to("/proc"))
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(subprocess, "run", run)
    every_fault_is_found(memory, "memory", lambda plant: memory.memory(torch, plant))
    assert memory.memory(torch, "") == {
        "integrated": True,
        "meminfo_total": 1000 << 10,
        "meminfo_available": 900 << 10,
        "cuda_total": 1024_000,
        "cuda_free": 10,
        "smi_total": "143771 MiB",
        "bytes": 512,
        "wrong": 0,
    }
    query = ["/bin/nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader"]
    assert ran[-1] == (query, 30)
    lost = memory.memory(torch, "lost-write")
    assert (lost["wrong"], lost["cuda_total"]) == (1, 1024_000)
    for error in (OSError("gone"), subprocess.TimeoutExpired("nvidia-smi", 30)):

        def fails(*_: Any, error: Exception = error, **__: Any) -> Any:
            raise error

        monkeypatch.setattr(subprocess, "run", fails)
        assert memory.memory(torch, "")["smi_total"] == ""
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert memory.memory(torch, "")["smi_total"] == ""


@pytest.mark.parametrize("said", ["580.159.04\n", ""])
def test_the_identity_of_a_gpu_is_what_kernel_driver_and_torch_say(
    said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    files = {
        "/sys/module/nvidia/version": tmp_path / "version",
        "/proc/self/maps": tmp_path / "maps",
    }
    if said:
        files["/sys/module/nvidia/version"].write_text(said)
    files["/proc/self/maps"].write_text(
        "1-2 r /usr/lib/libcuda.so.580\n3-4 r /compat/libother.so\n"
    )

    class Driver:
        def __init__(self, name: str) -> None:
            self.cuDriverGetVersion = self.version
            if name not in ("libcuda.so.1", "libnvidia-ml.so.1"):
                raise OSError(name)

        def version(self, found: Any) -> int:
            found._obj.value = 12080
            return 0

        def nvmlInit_v2(self) -> int:  # noqa: N802 - as NVML calls it
            return broken

        def nvmlSystemGetDriverVersion(self, text: Any, size: int) -> int:  # noqa: N802
            assert size == 80
            text.value = b"580.95"
            return 0

    broken = 0
    gb10 = SimpleNamespace(name="NVIDIA GB10", major=12, minor=1, multi_processor_count=48)
    torch = small_torch.gpu(
        get_device_properties=[gb10].__getitem__, get_arch_list=lambda: ["sm_80", "sm_120"]
    )
    monkeypatch.setattr(ctypes, "CDLL", Driver)
    monkeypatch.setattr(identity, "Path", files.__getitem__)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    found = identity.identity(torch, "")
    assert found == {
        "name": "NVIDIA GB10",
        "capability": [12, 1],
        "multiprocessors": 48,
        "driver": said.strip() or "580.95",
        "driver_cuda": [12, 8],
        "runtime_cuda": [13, 0],
        "forward_compatible": False,
        "archs": ["sm_80", "sm_120"],
        "sum": 2000.0,
        "visible": "0",
    }
    assert judged("identity", found) == FAIL  # CUDA 13 with a driver for 12
    with files["/proc/self/maps"].open("a") as maps:
        maps.write("5-6 r /usr/local/cuda/compat/libcuda.so.580\n")
    every_fault_is_found(
        SimpleNamespace(FAULTS={"identity": ("wrong-arch",)}),  # type: ignore[arg-type]
        "identity",
        lambda plant: identity.identity(torch, plant),
    )
    assert identity.identity(torch, "old-driver")["driver_cuda"] == [1, 0]
    assert identity.FAULTS == {"identity": ("wrong-arch", "old-driver")}
    broken = 1
    assert identity.identity(torch, "")["driver"] == said.strip()
