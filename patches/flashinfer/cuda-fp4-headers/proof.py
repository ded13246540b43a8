"""Compiles what needs FP4 types with the CUDA toolkit's own headers, and decodes all 16 values.

A kernel uses the toolkit's FP4 types, their conversions, the C++ core library's and FlashInfer's
headers for them, with the include paths that FlashInfer's JIT has, for sm_121a. The same headers,
compiled for the host, must decode the sixteen codes to what E2M1 says, and encode them back.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import proofkit

INCLUDES = (
    "include",
    "csrc",
    "cutlass/include",
    "cutlass/tools/util/include",
    "cccl/cub",
    "cccl/libcudacxx/include",
    "cccl/thrust",
)
FLAGS = ("-DFLASHINFER_ENABLE_FP4_E2M1", "-DFLASHINFER_ENABLE_FP8_E8M0")
KERNEL = """
#include <cuda_fp4.h>
#include <cuda/std/limits>
#include <cuda/std/type_traits>
#include <flashinfer/vec_dtypes.cuh>
static_assert(sizeof(__nv_fp4_e2m1) == 1 && sizeof(__nv_fp4x2_e2m1) == 1);
static_assert(sizeof(__nv_fp4x4_e2m1) == 2);
__global__ void probe(const float4* in, __nv_fp4x4_e2m1* four, __nv_fp4x2_e2m1* two,
                      __nv_fp4_e2m1* one, __half2* out) {
  four[0] = __nv_fp4x4_e2m1(in[0]);
  two[0] = __nv_fp4x2_e2m1(make_float2(in[0].x, in[0].y));
  one[0] = __nv_fp4_e2m1(in[0].x);
  out[0] = __half2(two[0]);
  out[1] = __half2(__nv_cvt_fp4x2_to_halfraw2(two[0].__x, __NV_E2M1));
}
"""
HOST = r"""
#include <cmath>
#include <cstdio>
#include <cuda_fp4.h>
int main() {
  const float values[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  for (unsigned code = 0; code < 16; code++) {
    float want = code & 8 ? -values[code & 7] : values[code & 7];
    __half_raw raw = __nv_cvt_fp4_to_halfraw((__nv_fp4_storage_t)code, __NV_E2M1);
    float got = __half2float(__half(raw));
    unsigned back = __nv_cvt_float_to_fp4(want, __NV_E2M1, cudaRoundNearest) & 15;
    if (got != want || std::signbit(got) != std::signbit(want) || back != code) {
      std::printf("code 0x%x decodes to %g, not %g, which encodes to 0x%x\n",
                  code, got, want, back);
      return 1;
    }
  }
  return 0;
}
"""


def symptoms(data: Path, folder: Path) -> Iterator[str]:
    """The first thing that goes wrong with the headers."""
    flags = [*FLAGS, *(f"-I{data / name}" for name in INCLUDES if (data / name).is_dir())]
    (folder / "probe.cu").write_text(KERNEL, encoding="utf-8")
    (folder / "host.cpp").write_text(HOST, encoding="utf-8")
    code, said, _ = proofkit.nvcc(folder / "probe.cu", "121a", *flags)
    if code:
        yield f"the headers do not compile for sm_121a: {proofkit.first_error(said)}"
        return
    own = f"-I{proofkit.cuda_home() / 'include'}"
    argv = ["g++", "-std=c++17", "-w", *flags, own, "host.cpp", "-o", "host"]
    code, said = proofkit.command(argv, folder)
    if code:
        yield f"the headers do not compile for the host: {proofkit.first_error(said)}"
        return
    code, said = proofkit.command([folder / "host"])
    if code:
        yield f"the FP4 types are wrong: {proofkit.first_error(said)}"


def judge(tree: Path) -> proofkit.Verdict:
    """The symptom is a header that does not compile, or a value that is not E2M1's."""
    proofkit.require("nvcc", "g++")
    proofkit.read(tree / "flashinfer/data/include/flashinfer/vec_dtypes.cuh")
    right = "the toolkit's own headers have every FP4 type that is asked for, all 16 values right"
    with tempfile.TemporaryDirectory() as folder:
        return proofkit.verdict(symptoms(tree / "flashinfer/data", Path(folder)), right)


if __name__ == "__main__":
    proofkit.main(judge)
