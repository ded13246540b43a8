"""Compiles what needs FP4 types with the CUDA toolkit's own headers, and decodes all sixteen values.

    IMAGEFACTORY_CUDA=CUDA_HOME python proof.py TREE

A kernel uses the toolkit's FP4 types, their conversions, the C++ core library's and FlashInfer's headers for them, with the
include paths that FlashInfer's JIT has, for sm_121a. The same headers, compiled for the host, must decode the sixteen codes
to what E2M1 says, and encode them back.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

TREE = pathlib.Path(sys.argv[1])
DATA = TREE / "flashinfer/data"
PATHS = [DATA / "include", DATA / "csrc", DATA / "cutlass/include", DATA / "cutlass/tools/util/include"]
PATHS += [DATA / "cccl" / part for part in ("cub", "libcudacxx/include", "thrust")]

KERNEL = """
#include <cuda_fp4.h>
#include <cuda/std/limits>
#include <cuda/std/type_traits>
#include <flashinfer/vec_dtypes.cuh>
static_assert(sizeof(__nv_fp4_e2m1) == 1 && sizeof(__nv_fp4x2_e2m1) == 1 && sizeof(__nv_fp4x4_e2m1) == 2);
__global__ void probe(const float4* in, __nv_fp4x4_e2m1* four, __nv_fp4x2_e2m1* two, __nv_fp4_e2m1* one, __half2* out) {
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
      std::printf("code 0x%x decodes to %g and not %g, which encodes to 0x%x\n", code, got, want, back);
      return 1;
    }
  }
  return 0;
}
"""


def run(argv, folder):
    """A program's exit code, and the line that tells most of what it said."""
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, errors="replace")
    lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return done.returncode, ([line for line in lines if "error" in line.lower()] or lines or ["nothing was said"])[0]


def main():
    """Exit 0, 1 or 3, with one sentence."""
    cuda = pathlib.Path(os.environ.get("IMAGEFACTORY_CUDA") or "/nonexistent")
    if not (cuda / "bin/nvcc").exists() or not shutil.which("g++"):
        print("cannot be told: needs g++, and a CUDA toolchain in IMAGEFACTORY_CUDA")
        return 3
    if not (DATA / "include/flashinfer/vec_dtypes.cuh").is_file():
        print("cannot be told: FlashInfer is not laid out as it was")
        return 3
    paths = [f"-I{path}" for path in PATHS if path.is_dir()]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "probe.cu").write_text(KERNEL)
        (folder / "host.cpp").write_text(HOST)
        flags = ["-std=c++17", "-w", "-DFLASHINFER_ENABLE_FP4_E2M1", "-DFLASHINFER_ENABLE_FP8_E8M0"]
        code, said = run(
            [str(cuda / "bin/nvcc"), *flags, "-gencode=arch=compute_121a,code=sm_121a", *paths, "-cubin", "-o", "x", "probe.cu"],
            folder,
        )
        if code:
            print(f"the headers do not compile for sm_121a: {said}")
            return 1
        code, said = run(["g++", *flags, *paths, f"-I{cuda / 'include'}", "host.cpp", "-o", "host"], folder)
        if code:
            print(f"the headers do not compile for the host: {said}")
            return 1
        code, said = run(["./host"], folder)
        if code:
            print(f"the FP4 types are wrong: {said}")
            return 1
    print("the toolkit's own headers have every FP4 type that is asked for, and all sixteen values are right")
    return 0


sys.exit(main())
