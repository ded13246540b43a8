"""Runs vLLM's dispatchers of the CUTLASS kernels for several GPUs: which kernel is called?

``scaled_mm_entry.cu``, ``nvfp4_scaled_mm_entry.cu`` and ``nvfp4_quant_entry.cu`` are compiled whole
with g++, as is the dispatching function of ``nvfp4_blockwise_moe_kernel.cu`` and the one that asks
for the GPU's capability. Torch and CUDA are stand-ins, and every kernel that is declared notes its
name when it is called. This is done with the ENABLE_… of a build for 12.x and with those of the
official wheels (9.0, 10.0 and 12.x together).

On 12.1 everything must go as on 12.0; FP8 and NVFP4 must reach the SM120 kernels, and nothing may
be promised that has no kernel (``vllm/_custom_ops.py``, which answers one of the promises first, is
run, too). On 10.0 and 9.0 the wheel's FP8 must reach the kernels of these.
"""

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import proofkit

SM120 = ["SCALED_MM_SM120", "SCALED_MM_C2X", "NVFP4_SM120", "CUTLASS_MOE_SM120"]
OTHERS = [
    "SCALED_MM_SM90",
    "SCALED_MM_SM100",
    "NVFP4_SM100",
    "CUTLASS_MOE_SM90",
    "CUTLASS_MOE_SM100",
]
BUILDS = {"a build for 12.x": SM120, "the wheel": SM120 + OTHERS}
ENTRIES = ("scaled_mm_entry.cu", "nvfp4_scaled_mm_entry.cu", "nvfp4_quant_entry.cu")
GROUPED = "run_fp4_blockwise_scaled_group_mm"
REACHED = {  # what must be called where
    ("cutlass_scaled_mm", 121): "cutlass_scaled_mm_sm120",
    ("cutlass_scaled_fp4_mm", 121): "cutlass_scaled_fp4_mm_sm120a",
    (GROUPED, 121): f"{GROUPED}_sm120",
    ("cutlass_scaled_mm_supports_fp8", 121): "true",
    ("cutlass_scaled_mm_supports_block_fp8", 121): "true",
    ("cutlass_scaled_mm_supports_fp4", 121): "true",
}
REACHED_BY_WHEEL = {
    ("cutlass_scaled_mm", 100): "cutlass_scaled_mm_sm100",
    ("cutlass_scaled_mm", 90): "cutlass_scaled_mm_sm90",
    ("cutlass_scaled_fp4_mm", 100): "cutlass_scaled_fp4_mm_sm100a",
}
STAND_IN = r"""
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <optional>
#include <tuple>
#include <vector>
#define CUDA_VERSION 13000
inline int capability = 0;
inline char called[4096];
inline void note(const char* name) {
  std::strcat(std::strcat(called, *called ? " " : ""), name);
}
struct Refused {};
enum { cudaDevAttrComputeCapabilityMajor, cudaDevAttrComputeCapabilityMinor };
inline int cudaDeviceGetAttribute(int* value, int which, int) {
  *value = which == cudaDevAttrComputeCapabilityMajor ? capability / 10 : capability % 10;
  return 0;
}
inline int cudaRuntimeGetVersion(int* value) { return *value = CUDA_VERSION, 0; }
struct Any {
  template <typename... A> Any(A&&...) {}
  bool operator==(const Any&) const { return true; }
  bool operator!=(const Any&) const { return false; }
};
// One by one, row-major and packed; as the third argument column-major. Of any type.
struct Tensor {
  bool columns = false;
  int64_t dim() const { return 2; }
  int64_t size(int64_t) const { return 1; }
  int64_t stride(int64_t d) const { return d == (columns ? 0 : 1) ? 1 : 16; }
  int64_t numel() const { return 1; }
  bool is_contiguous() const { return true; }
  int get_device_index() const { return 0; }
  void* data_ptr() const { return nullptr; }
  Any scalar_type() const { return {}; }
  Any dtype() const { return {}; }
  Any device() const { return {}; }
  Any options() const { return {}; }
};
inline int device_of(const Tensor&) { return 0; }
namespace c10::cuda { using OptionalCUDAGuard = Any; }
namespace at::cuda { using OptionalCUDAGuard = c10::cuda::OptionalCUDAGuard; }
namespace torch {
using ::Tensor;
inline const Any kInt, kInt32, kUInt8;
struct TensorOptions {
  TensorOptions dtype(Any) { return {}; }
  TensorOptions device(Any) { return {}; }
};
template <typename... A> Tensor empty(std::vector<int64_t>, A&&...) { return {}; }
namespace headeronly::ScalarType { inline const Any Int, Byte, Float; }
namespace stable {
using ::Tensor;
template <typename... A> Tensor empty(std::vector<int64_t>, A&&...) { return {}; }
namespace accelerator { using DeviceGuard = Any; }
}  // namespace stable
}  // namespace torch
inline constexpr int CVT_FP4_SF_VEC_SIZE = 16;
namespace vllm {
inline std::tuple<int64_t, int64_t> computeSwizzledSFShape(int64_t, int64_t) { return {1, 1}; }
}
#define TORCH_CHECK(condition, ...) \
  do { if (!(condition)) throw Refused(); } while (0)
#define TORCH_CHECK_NOT_IMPLEMENTED TORCH_CHECK
#define STD_TORCH_CHECK TORCH_CHECK
#define STD_TORCH_CHECK_NOT_IMPLEMENTED TORCH_CHECK
int32_t get_sm_version_num();
"""
ASK = r"""
template <typename T> struct Make { static T value(int) { return T(); } };
template <> struct Make<Tensor> { static Tensor value(int at) { return Tensor{at == 2}; } };
template <> struct Make<int64_t> { static int64_t value(int) { return capability; } };
// An argument that can be bound to any kind of reference.
template <typename T> struct Given {
  T value;
  Given(int at) : value(Make<T>::value(at)) {}
  T& get() { return value; }
};
template <typename R, typename... A, size_t... I>
void ask(const char* name, R (*function)(A...), std::index_sequence<I...>) {
  *called = 0;
  try {
    if constexpr (std::is_same_v<R, bool>)
      std::strcpy(called, function(Given<std::decay_t<A>>(I).get()...) ? "true" : "false");
    else (void)function(Given<std::decay_t<A>>(I).get()...);
  } catch (Refused) { std::strcpy(called, "refused"); }
  std::printf("%s\t%d\t%s\n", name, capability, called);
}
template <typename R, typename... A> void ask(const char* name, R (*function)(A...)) {
  ask(name, function, std::index_sequence_for<A...>());
}
int main() {
  for (int gpu : {121, 120, 100, 90}) {
    capability = gpu;
    ALL
  }
}
"""
#: What was called, or answered, by function and GPU (121 for 12.1).
Answers = Mapping[tuple[str, int], str]


def source(tree: Path, name: str) -> str:
    """The text of the one file of that name below csrc."""
    files = proofkit.holding(tree / "csrc", re.escape(name))
    found = [path for path in files if "rocm" not in path.parts]
    if len(found) != 1:
        raise proofkit.Inconclusive(f"{len(found)} files below csrc are named {name}")
    return proofkit.read(found[0])


def definition(text: str, name: str) -> str:
    """A function of a source, with its template line."""
    pattern = rf"^(?:template <[^\n]*>\n)?(?:inline )?\w+ {name}\([^;{{]*\) \{{.*?^\}}"
    found = re.search(pattern, text, re.MULTILINE | re.DOTALL)
    if not found:
        raise proofkit.Inconclusive(f"there is no function {name}")
    return found[0]


def capability_function(tree: Path) -> str:
    """The function that asks for the GPU's capability, in a header from 0.32, else a source."""
    for path in proofkit.holding(tree / "csrc", r"common\.[ch]pp", r"get_sm_version_num\(\) \{"):
        if path.parent.name == "cutlass_extensions":
            return definition(proofkit.read(path), "get_sm_version_num")
    raise proofkit.Inconclusive("there is no function get_sm_version_num")


def program(tree: Path) -> str:
    """All dispatchers as one source that asks each of its functions."""
    parts, asked = ['#include "stand_in.h"', capability_function(tree)], list[str]()
    for name in ENTRIES:
        text = re.sub(r"^\s*#\s*include[^\n]*$", "", source(tree, name), flags=re.MULTILINE)
        functions = r"^(?:void|bool|std::tuple<[^{;]*?>) (\w+)\([^;{]*\) \{"
        asked += re.findall(functions, text, re.MULTILINE)
        declared = re.compile(r"^void (\w+)\(([^;{}]*)\);", re.MULTILINE)
        parts.append(declared.sub(r'void \1(\2) { note("\1"); }', text))
    for arch, first in (("sm120", ""), ("sm100", "typename T, ")):
        kernel = f"{GROUPED}_{arch}"
        note = f'note("{kernel}");'
        parts.append(f"template <{first}typename... A> void {kernel}(A&&...) {{ {note} }}")
    parts.append(definition(source(tree, "nvfp4_blockwise_moe_kernel.cu"), GROUPED))
    calls = [f'ask("{name}", {name});' for name in asked] + [f'ask("{GROUPED}", {GROUPED}<int>);']
    return "\n".join([*parts, ASK.replace("ALL", "\n    ".join(calls))])


def answers(text: str, enabled: Sequence[str]) -> Answers:
    """What the program says under some ENABLE_… definitions."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "stand_in.h").write_text(STAND_IN, encoding="utf-8")
        (folder / "all.cpp").write_text(text, encoding="utf-8")
        flags = ["-std=c++20", "-w", "-O0", *(f"-DENABLE_{flag}=1" for flag in enabled)]
        code, said = proofkit.command(["g++", *flags, "all.cpp", "-o", "all"], folder)
        if code:
            what = f"the dispatchers do not compile with stand-ins: {said[:400]}"
            raise proofkit.Inconclusive(what)
        code, said = proofkit.command([folder / "all"])
        if code:
            raise proofkit.Inconclusive(f"the dispatchers end with {code}: {said[-300:]}")
    rows = (line.split("\t") for line in said.splitlines())
    return {(name, int(gpu)): answer for name, gpu, answer in rows}


def promised(tree: Path, seen: Answers, gpu: int) -> bool:
    """Whether Python says that there is a grouped GEMM."""
    name = "cutlass_group_gemm_supported"
    native = SimpleNamespace(**{name: lambda capability: seen[name, capability] == "true"})
    space: proofkit.Space = {"torch": SimpleNamespace(ops=SimpleNamespace(_C=native))}
    return bool(proofkit.Source(tree / "vllm/_custom_ops.py").run([name], space)[name](gpu))


def symptoms_of(tree: Path, build: str, seen: Answers, reached: Answers) -> Iterator[str]:
    """What is not as it should be with one set of definitions."""
    there = {name for name, _ in seen}
    if missing := [name for name, _ in reached if name not in there]:
        raise proofkit.Inconclusive(f"there is no function {missing[0]}")
    for (name, gpu), wanted in reached.items():
        if seen[name, gpu] != wanted:
            yield f"{build}: {name} on {gpu / 10}: {seen[name, gpu] or 'nothing'}, not {wanted}"
    for name in sorted(there):
        own, model = seen[name, 121] or "nothing", seen[name, 120] or "nothing"
        if own != model:
            yield f"{build}: {name} on 12.1: {own}; on 12.0: {model}"
    if promised(tree, seen, 121) and seen["cutlass_moe_mm", 121] == "refused":
        yield f"{build}: a grouped FP8 GEMM is promised on 12.1, and cutlass_moe_mm refuses"


def judge(tree: Path) -> proofkit.Verdict:
    """The symptom is a function that does another thing on 12.1 than on 12.0, or than it should."""
    proofkit.require("g++")
    text, found = program(tree), list[str]()
    for build, enabled in BUILDS.items():
        reached = REACHED if enabled is SM120 else REACHED | REACHED_BY_WHEEL
        found += symptoms_of(tree, build, answers(text, enabled), reached)
    right = "12.1 is dispatched as 12.0 is: FP8 and NVFP4 reach the SM120 kernels"
    return proofkit.verdict(found, f"{right}, nothing is promised that does not exist")


if __name__ == "__main__":
    proofkit.main(judge)
