"""Runs vLLM's own dispatchers of the CUTLASS kernels on the host, for several GPUs, and looks at which kernel they call.

    python proof.py TREE

``scaled_mm_entry.cu``, ``nvfp4_scaled_mm_entry.cu`` and ``nvfp4_quant_entry.cu`` are compiled whole with g++, as is the
dispatching function of ``nvfp4_blockwise_moe_kernel.cu`` and the one that asks for the GPU's capability. Torch and CUDA are
stand-ins, and every kernel that is declared notes its name when it is called. This is done with the ENABLE_… of a build
for 12.x and with those of the official wheels (9.0, 10.0 and 12.x together).

On 12.1 everything must go as on 12.0; FP8 and NVFP4 must reach the SM120 kernels, and nothing may be promised that has no
kernel (``vllm/_custom_ops.py`` stands before one of the promises and is run, too). On 10.0 and 9.0 the wheel's FP8 must
reach the kernels of these. Needs `g++`.
"""

import ast
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import types

TREE = pathlib.Path(sys.argv[1])
SM120 = ["SCALED_MM_SM120", "SCALED_MM_C2X", "NVFP4_SM120", "CUTLASS_MOE_SM120"]
OTHERS = ["SCALED_MM_SM90", "SCALED_MM_SM100", "NVFP4_SM100", "CUTLASS_MOE_SM90", "CUTLASS_MOE_SM100"]
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
#include <iostream>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>
#define CUDA_VERSION 13000
inline int capability = 0;
inline std::string called;
inline void note(const char* name) { called += (called.empty() ? "" : " ") + std::string(name); }
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
// One by one, row-major and packed; as the third argument column-major. Of every type that it is asked for.
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
struct TensorOptions { TensorOptions dtype(Any) { return {}; } TensorOptions device(Any) { return {}; } };
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
#define TORCH_CHECK(condition, ...) do { if (!(condition)) throw std::runtime_error("refused"); } while (0)
#define TORCH_CHECK_NOT_IMPLEMENTED TORCH_CHECK
#define STD_TORCH_CHECK TORCH_CHECK
#define STD_TORCH_CHECK_NOT_IMPLEMENTED TORCH_CHECK
int32_t get_sm_version_num();
"""
ASK = r"""
template <typename T> struct Make { static T value(int) { return T(); } };
template <> struct Make<Tensor> { static Tensor value(int at) { return Tensor{at == 2}; } };
template <> struct Make<int64_t> { static int64_t value(int) { return capability; } };
template <typename R, typename... A, size_t... I>
void ask(const char* name, R (*function)(A...), std::index_sequence<I...>) {
  std::tuple<std::decay_t<A>...> given{Make<std::decay_t<A>>::value(I)...};
  called.clear();
  try {
    if constexpr (std::is_same_v<R, bool>) called = function(std::get<I>(given)...) ? "true" : "false";
    else (void)function(std::get<I>(given)...);
  } catch (const std::runtime_error& error) { called = error.what(); }
  std::cout << name << "\t" << capability << "\t" << called << "\n";
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


class Unknown(Exception):
    """The sources are not laid out in any way that this proof knows, or a tool is missing."""


def source(name):
    """The text of the one file of that name below csrc."""
    found = [path for path in sorted((TREE / "csrc").rglob(name)) if "rocm" not in path.parts]
    if len(found) != 1:
        raise Unknown(f"{len(found)} files below csrc are named {name}")
    return found[0].read_text(encoding="utf-8")


def definition(text, name):
    """A function of a source, with its template line."""
    found = re.search(rf"^(?:template <[^\n]*>\n)?(?:inline )?\w+ {name}\([^;{{]*\) \{{.*?^\}}", text, re.MULTILINE | re.DOTALL)
    if not found:
        raise Unknown(f"there is no function {name}")
    return found[0]


def capability_function():
    """The function that asks for the GPU's capability: in a header from 0.32, before that in a source."""
    for path in sorted((TREE / "csrc").rglob("cutlass_extensions/common.[ch]pp")):
        text = path.read_text(encoding="utf-8")
        if re.search(r"get_sm_version_num\(\) \{", text):
            return definition(text, "get_sm_version_num")
    raise Unknown("there is no function get_sm_version_num")


def program():
    """All dispatchers as one source, and the names of the functions in it that are asked."""
    parts, asked = ['#include "stand_in.h"', capability_function()], []
    for name in ENTRIES:
        text = re.sub(r"^\s*#\s*include[^\n]*$", "", source(name), flags=re.MULTILINE)
        asked += re.findall(r"^(?:void|bool|std::tuple<[^{;]*?>) (\w+)\([^;{]*\) \{", text, re.MULTILINE)
        parts.append(re.sub(r"^void (\w+)\(([^;{}]*)\);", r'void \1(\2) { note("\1"); }', text, flags=re.MULTILINE))
    kernels = "\n".join(
        f'template <{first}typename... A> void {GROUPED}_{arch}(A&&...) {{ note("{GROUPED}_{arch}"); }}'
        for arch, first in (("sm120", ""), ("sm100", "typename T, "))
    )
    parts += [kernels, definition(source("nvfp4_blockwise_moe_kernel.cu"), GROUPED)]
    calls = [f'ask("{name}", {name});' for name in asked] + [f'ask("{GROUPED}", {GROUPED}<int>);']
    return "\n".join([*parts, ASK.replace("ALL", "\n    ".join(calls))])


def answers(text, enabled):
    """{(function, capability): what was called, or the answer} under some ENABLE_… definitions."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "stand_in.h").write_text(STAND_IN, encoding="utf-8")
        (folder / "all.cpp").write_text(text, encoding="utf-8")
        argv = ["g++", "-std=c++20", "-w", "-O0", *(f"-DENABLE_{flag}=1" for flag in enabled), "all.cpp", "-o", "all"]
        done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode:
            raise Unknown(f"the dispatchers do not compile with stand-ins: {done.stderr[:400]}")
        done = subprocess.run([folder / "all"], capture_output=True, text=True, timeout=60, check=True)
    rows = (line.split("\t") for line in done.stdout.splitlines())
    return {(name, int(gpu)): answer for name, gpu, answer in rows}


def promised(seen, gpu):
    """Whether Python says that there is a grouped GEMM."""
    path = TREE / "vllm/_custom_ops.py"
    found = [n for n in ast.parse(path.read_text(encoding="utf-8")).body if getattr(n, "name", "") == "cutlass_group_gemm_supported"]
    if len(found) != 1:
        raise Unknown("_custom_ops.py does not define cutlass_group_gemm_supported")
    native = types.SimpleNamespace(cutlass_group_gemm_supported=lambda at: seen["cutlass_group_gemm_supported", at] == "true")
    space = {"torch": types.SimpleNamespace(ops=types.SimpleNamespace(_C=native))}
    exec(compile(ast.Module(found, []), "vllm", "exec"), space)
    return space["cutlass_group_gemm_supported"](gpu)


def symptoms_of(build, seen, reached):
    """What is not as it should be with one set of definitions."""
    if missing := [name for name, _ in reached if not any(name == there for there, _ in seen)]:
        raise Unknown(f"there is no function {missing[0]}")
    for (name, gpu), wanted in reached.items():
        if seen[name, gpu] != wanted:
            yield f"{build}: {name} on {gpu / 10}: {seen[name, gpu] or 'nothing'}, not {wanted}"
    for name, gpu in seen:
        if gpu == 121 and seen[name, 121] != seen[name, 120]:
            yield f"{build}: {name} on 12.1: {seen[name, 121] or 'nothing'}; on 12.0: {seen[name, 120] or 'nothing'}"
    if promised(seen, 121) and seen["cutlass_moe_mm", 121] == "refused":
        yield f"{build}: a grouped FP8 GEMM is promised on 12.1, and cutlass_moe_mm refuses"


def main():
    """Look at every build."""
    if not shutil.which("g++"):
        raise Unknown("there is no g++")
    text, lines = program(), []
    for build, enabled in BUILDS.items():
        seen = answers(text, enabled)
        lines += symptoms_of(build, seen, REACHED | (REACHED_BY_WHEEL if enabled is not SM120 else {}))
    return list(dict.fromkeys(lines))


try:
    found = main()
except Exception as error:  # an unknown layout may fail in any way; what Python makes of that is exit 1, a symptom
    print(f"cannot be told: {error!r}")
    sys.exit(3)
print("; ".join(found) or "12.1 is dispatched as 12.0 is: FP8 and NVFP4 reach the SM120 kernels, nothing is promised that is not there")
sys.exit(1 if found else 0)
