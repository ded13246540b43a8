"""The conversions of floats to E2M1, for all 2^32 inputs, in software and by the instruction.

The software is that of the patch vllm/e2m1-software, compiled for this GPU by torch's NVRTC. The
reference decides by distance, in exact arithmetic, so no threshold is written down twice.
"""

from __future__ import annotations

from typing import Any

FAULTS = {
    "e2m1-software": ("ties-away", "negative-nan", "half-of-inputs"),
    "e2m1-hardware": ("swapped-nibbles", "half-of-inputs"),
}
#: As in the patch: a test compares them.
SOFTWARE = """
__device__ __forceinline__ uint32_t e2m1_in_software(float x) {
  const float ax = fabsf(x);
  if (!(ax == ax)) {
    return 0x7;
  }
  const uint32_t code = (ax > 0.25f) + (ax >= 0.75f) + (ax > 1.25f) +
                        (ax >= 1.75f) + (ax > 2.5f) + (ax >= 3.5f) +
                        (ax > 5.0f);
  return code | (__float_as_uint(x) >> 28 & 0x8);
}
"""
#: The first operand of the instruction becomes the upper nibble.
HARDWARE = """
__device__ __forceinline__ uint32_t e2m1_in_hardware(float x) {
  uint32_t both;
  asm("{ .reg .b8 b; cvt.rn.satfinite.e2m1x2.f32 b, %1, %2; cvt.u32.u8 %0, b; }"
      : "=r"(both) : "f"(0.0f), "f"(x));
  return both;
}
"""
COMMON = """
typedef unsigned int uint32_t;
typedef unsigned long long u64;
"""
COMPARE = """
__device__ uint32_t reference(float x) {
  const double values[8] = {0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0};
  const uint32_t bits = __float_as_uint(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 7;
  const double magnitude = fabs((double)x);
  uint32_t code = 7;
  if (magnitude < 6.0) {
    code = 0;
    for (uint32_t c = 1; c < 8; c++) {
      const double here = fabs(magnitude - values[c]), best = fabs(magnitude - values[code]);
      if (here < best || (here == best && c % 2 == 0)) code = c;
    }
  }
  return code | (bits >> 31 << 3);
}

// found[0]: inputs compared; found[1]: wrong ones; found[2]: the least wrong input
extern "C" __global__ void compare(u64* found, const u64* range) {
  const u64 step = (u64)gridDim.x * blockDim.x;
  u64 seen = 0, wrong = 0;
  for (u64 at = range[0] + (u64)blockIdx.x * blockDim.x + threadIdx.x; at < range[1];
       at += step) {
    const float x = __uint_as_float((uint32_t)at);
    seen++;
    if (CONVERT(x) != reference(x)) {
      wrong++;
      atomicMin(found + 2, at);
    }
  }
  atomicAdd(found, seen);
  atomicAdd(found + 1, wrong);
}
"""
INPUTS = 1 << 32
PLANTS = {
    "ties-away": ("ax > 0.25f", "ax >= 0.25f"),
    "negative-nan": ("return 0x7;", "return 0x7 | (__float_as_uint(x) >> 28 & 0x8);"),
    "swapped-nibbles": ('"f"(0.0f), "f"(x)', '"f"(x), "f"(0.0f)'),
}


def software(torch: Any, plant: str) -> dict[str, Any]:
    """The patch's conversion."""
    return _all_inputs(torch, plant, SOFTWARE, "e2m1_in_software", None)


def hardware(torch: Any, plant: str) -> dict[str, Any]:
    """The instruction, which GPUs have from sm_100 on."""
    major, minor = torch.cuda.get_device_capability()
    if (major, minor) < (10, 0):
        return {"unsupported": f"sm_{major}{minor} has no instruction for it"}
    return _all_inputs(torch, plant, HARDWARE, "e2m1_in_hardware", f"{major}{minor}a")


def _all_inputs(
    torch: Any, plant: str, source: str, function: str, target: str | None
) -> dict[str, Any]:
    compile_kernel = getattr(torch.cuda, "_compile_kernel", None)
    if compile_kernel is None:
        return {"missing": f"torch {torch.__version__} cannot compile a kernel (2.9 can)"}
    if plant in PLANTS:
        source = source.replace(*PLANTS[plant])
    program = f"{COMMON}{source}{COMPARE.replace('CONVERT', function)}"
    compare = compile_kernel(program, "compare", compute_capability=target)
    found = torch.tensor([0, 0, INPUTS], device="cuda", dtype=torch.int64)
    last = INPUTS // 2 if plant == "half-of-inputs" else INPUTS
    chunk = 1 << 28
    for first in range(0, last, chunk):
        bounds = torch.tensor([first, first + chunk], device="cuda", dtype=torch.int64)
        compare(grid=(2048, 1, 1), block=(256, 1, 1), args=[found, bounds])
        torch.cuda.synchronize()
    seen, wrong, least = found.tolist()
    return {"inputs": seen, "wrong": wrong, "first_wrong": f"0x{least:08x}" if wrong else ""}


PROBES = {"e2m1-software": software, "e2m1-hardware": hardware}
