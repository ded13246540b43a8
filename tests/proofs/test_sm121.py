"""The proofs about the road of capability 12.1.

On a build small enough to read and on layouts that nobody knows.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support import proofs

ENABLED = "-DENABLE_SCALED_MM_SM120=1 -DENABLE_CUTLASS_MOE_SM120=1 -DENABLE_NVFP4_SM120=1"
ENTRIES = ["scaled_mm_entry.cu", "nvfp4_scaled_mm_entry.cu", "nvfp4_quant_entry.cu"]
KERNELS = [
    "scaled_mm_sm120_fp8.cu",
    "scaled_mm_blockwise_sm120_fp8.cu",
    "nvfp4_scaled_mm_sm120_kernels.cu",
    "nvfp4_blockwise_moe_kernel.cu",
    "nvfp4_quant_kernels.cu",
    "nvfp4_experts_quant.cu",
    "activation_nvfp4_quant_fusion_kernels.cu",
]
#: As vLLM's: the list of the user comes from torch's flags, kernels get their targets as options of
#: their source.
BUILD = """\
project(vllm_extensions LANGUAGES CXX)
find_package(Torch REQUIRED)
string(REGEX MATCH "code=sm_([0-9]+[af]?)" found "${CMAKE_CUDA_FLAGS}")
set(asked "${CMAKE_MATCH_1}")
set(family "120f")
set(plain "120")
if(asked STREQUAL "110")
  set(family "110f")
  set(plain "110")
endif()
@HERE@
foreach(source @ENTRIES@)
  set_property(SOURCE csrc/fp4/${source} PROPERTY COMPILE_OPTIONS -gencode arch=compute_${plain},code=sm_${plain})
  list(APPEND sources csrc/fp4/${source})
endforeach()
foreach(source @KERNELS@)
  set_property(SOURCE csrc/fp4/${source} PROPERTY COMPILE_OPTIONS -gencode arch=compute_${family},code=sm_${family})
  list(APPEND sources csrc/fp4/${source})
endforeach()
Python_add_library(_C MODULE ${sources})
target_compile_options(_C PRIVATE @FLAGS@)
"""
GUARDED = """\
template <typename Kernel>
struct enable_sm120_only : Kernel {
  void operator()() {
#if defined __CUDA_ARCH__
  #if __CUDA_ARCH__ == 1200
    Kernel::operator()();
  #endif
#endif
  }
};
using Gemm = enable_sm120_only<int>;
"""

cmake = pytest.mark.skipif(not shutil.which("cmake"), reason="there is no cmake")


def judged(name: str, tree: Path, **environment: str) -> tuple[int, str]:
    return proofs.judged(f"vllm/{name}", tree, environment)


def build(
    tree: Path, *, here: str = "", flags: str = ENABLED, kernels: list[str] = KERNELS
) -> Path:
    text = BUILD.replace("@HERE@", here).replace("@FLAGS@", flags)
    text = text.replace("@ENTRIES@", " ".join(ENTRIES)).replace("@KERNELS@", " ".join(kernels))
    (tree / "csrc" / "fp4").mkdir(parents=True)
    for folder in ("cmake", "vllm"):
        (tree / folder).mkdir()
    (tree / "CMakeLists.txt").write_text(text)
    for name in ENTRIES + KERNELS:
        (tree / "csrc" / "fp4" / name).touch()
    return tree


@cmake
def test_code_of_the_family_and_definitions_for_the_dispatchers_are_right(tmp_path: Path) -> None:
    code, said = judged("cmake-arch-121", build(tmp_path))
    assert code == 0, said


@cmake
@pytest.mark.parametrize("target", ["120", "121", "120a", "100f"])
def test_a_target_that_lacks_the_features_or_does_not_load_is_a_symptom(
    tmp_path: Path, target: str
) -> None:
    code, said = judged("cmake-arch-121", build(tmp_path, here=f'set(family "{target}")'))
    assert (code, f"sm_{target} for csrc/fp4/" in said) == (1, True), said


@cmake
def test_a_list_that_only_one_way_of_asking_spoils_is_named(tmp_path: Path) -> None:
    here = 'if(asked STREQUAL "121")\n  set(family "121")\nendif()'
    code, said = judged("cmake-arch-121", build(tmp_path, here=here))
    assert (code, said.startswith("for 12.1: sm_121 for ")) == (1, True), said


@cmake
def test_the_targets_own_features_are_as_good_as_the_familys(tmp_path: Path) -> None:
    here = 'if(asked STREQUAL "121a")\n  set(family "121a")\nendif()'
    code, said = judged("cmake-arch-121", build(tmp_path, here=here))
    assert code == 0, said


@cmake
def test_a_guard_that_shuts_out_what_the_target_defines_is_a_symptom(tmp_path: Path) -> None:
    here = 'if(asked STREQUAL "121a")\n  set(family "121a")\nendif()'
    tree = build(tmp_path, here=here)
    (tree / "csrc" / "fp4" / "guards.hpp").write_text(GUARDED)
    (tree / "csrc" / "fp4" / KERNELS[0]).write_text('#include "guards.hpp"\n')
    code, said = judged("cmake-arch-121", tree)
    assert code == 1, said
    assert (
        "for 12.1a: scaled_mm_sm120_fp8.cu: enable_sm120_only shuts out __CUDA_ARCH__ 1210" in said
    )
    assert "1200" not in said


@cmake
def test_another_gpu_that_gets_no_code_any_more_is_a_symptom(tmp_path: Path) -> None:
    here = 'if(asked STREQUAL "110")\n  set(family "120f")\n  set(plain "120")\nendif()'
    code, said = judged("cmake-arch-121", build(tmp_path, here=here))
    assert (code, said) == (1, "for 11.0: no code at all")


@cmake
@pytest.mark.parametrize("missing", ENABLED.split())
def test_a_dispatcher_that_does_not_know_its_kernels_is_a_symptom(
    tmp_path: Path, missing: str
) -> None:
    code, said = judged("cmake-arch-121", build(tmp_path, flags=ENABLED.replace(missing, "")))
    assert (code, f"compiled without {missing[2:-2]}" in said) == (1, True), said


@cmake
def test_a_kernel_that_is_left_out_is_a_symptom(tmp_path: Path) -> None:
    code, said = judged("cmake-arch-121", build(tmp_path, kernels=KERNELS[:-1]))
    assert (code, f"but not {KERNELS[-1]}" in said) == (1, True), said


@cmake
def test_a_build_that_does_not_configure_is_inconclusive(tmp_path: Path) -> None:
    code, said = judged("cmake-arch-121", build(tmp_path, here='message(FATAL_ERROR "no")'))
    assert code == 3, said


@pytest.mark.parametrize(
    "name", ["cmake-arch-121", "scaled-mm-sm121-dispatch", "fp8-backend-sm121"]
)
def test_sources_of_an_unknown_layout_are_inconclusive(tmp_path: Path, name: str) -> None:
    code, said = judged(name, tmp_path)
    assert (code, said.startswith("inconclusive: ")) == (3, True), said


@pytest.mark.parametrize(
    ("name", "tool"), [("cmake-arch-121", "cmake"), ("scaled-mm-sm121-dispatch", "g++")]
)
def test_without_its_tool_a_proof_is_inconclusive(tmp_path: Path, name: str, tool: str) -> None:
    found = judged(name, build(tmp_path / "tree"), PATH=str(tmp_path))
    assert found == (3, f"inconclusive: needs {tool}")
