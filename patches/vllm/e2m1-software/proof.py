"""Compiles vLLM's conversions of floats to E2M1 for several GPUs, and computes with them.

The header ``nvfp4_utils.cuh`` is compiled as it is, with stand-ins for torch's types, in a kernel
that calls each of its conversions. For a target with the features of its architecture or family
(sm_121a, sm_120f, sm_100a) every conversion must be the instruction; for a plain one (sm_121,
sm_120), which has no such instruction, it must be something that ptxas takes. What that is, is
compiled for the host and compared with a reference of its own: nearest value, ties to the even
code, saturating, NaN of either sign to 0x7, -0 to 0x8, element i in nibble i. Other files whose
code holds the instruction are put through the preprocessor, as for a plain target, one of a family
and one of an architecture: the first must not see it, the others must.
"""

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import proofkit

HEADERS = [f"csrc/{part}quantization/fp4/nvfp4_utils.cuh" for part in ("", "libtorch_stable/")]
INSTRUCTION = re.compile(r"cvt\.rn\.satfinite\.e2m1x2\.f32")
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
CODE = (r"\.cu", r"\.cuh", r"\.h", r"\.hpp", r"\.inl")
PLAIN, FEATURED = ("121", "120"), ("121a", "120f", "100a")
#: What nvcc defines for some targets: architecture, and features of its family and its own.
PREDEFINED = {"sm_121": (1210, 0, 0), "sm_120f": (1200, 1200, 0), "sm_121a": (1210, 1210, 1210)}
MACROS = ("__CUDA_ARCH__", "__CUDA_ARCH_FAMILY_SPECIFIC__", "__CUDA_ARCH_SPECIFIC__")

TORCH = """
#pragma once
namespace c10 { struct Half {}; struct BFloat16 {}; }
namespace at { using c10::Half; using c10::BFloat16; }
namespace torch { namespace headeronly { using c10::Half; using c10::BFloat16; } }
"""
CUDA = "\n".join(
    f"#include <{name}>" for name in ("cuda_runtime.h", "cuda_fp16.h", "cuda_bf16.h", "cuda_fp8.h")
)
STANDARD = "\n".join(
    f"#include <{name}>"
    for name in ("cassert", "cmath", "cstdint", "cstring", "type_traits", "utility")
)

DEVICE = """
__global__ void probe(const float* in, uint32_t* out) {
  float one[8];
  float2 two[4], four[8];
  for (int i = 0; i < 8; i++) one[i] = in[i];
  for (int i = 0; i < 4; i++) two[i] = make_float2(in[2 * i + 8], in[2 * i + 9]);
  for (int i = 0; i < 8; i++) four[i] = make_float2(in[2 * i + 16], in[2 * i + 17]);
  out[0] = vllm::fp32_vec8_to_e2m1(one);
  out[1] = vllm::fp32_vec8_to_e2m1(two);
  auto both = vllm::fp32_vec16_to_e2m1(four);
  out[2] = both.lo;
  out[3] = both.hi;
}
"""

#: What the header asks of the device: only what a conversion may use has a body.
HOST_PRELUDE = """
static inline unsigned __float_as_uint(float x) { unsigned u; std::memcpy(&u, &x, 4); return u; }
static inline float __uint_as_float(unsigned u) { float x; std::memcpy(&x, &u, 4); return x; }
static inline int __float_as_int(float x) { return (int)__float_as_uint(x); }
static inline int __float2int_rn(float x) { return (int)std::nearbyintf(x); }
using std::min; using std::max;
static uint3 threadIdx, blockIdx;
static dim3 blockDim, gridDim;
template <class T> T __shfl_xor_sync(unsigned, T, int);
float2 __fmul2_rn(float2, float2);
float __fdividef(float, float);
template <class T> T __hmax2(T, T);
template <class T> T __habs2(T);
template <class T> T __hmax(T, T);
template <class T> T __ldg(const T*);
#define __CUDA_ARCH__ 1210
"""

HOST_MAIN = r"""
static const float VALUES[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};

// by distance, in exact arithmetic: no threshold is written down here
static unsigned reference(float x) {
  if (std::isnan(x)) return 7;
  double magnitude = std::fabs((double)x);
  unsigned code = 7;
  if (magnitude < 6.0) {
    code = 0;
    for (unsigned c = 1; c < 8; c++) {
      double here = std::fabs(magnitude - VALUES[c]), best = std::fabs(magnitude - VALUES[code]);
      if (here < best || (here == best && c % 2 == 0)) code = c;
    }
  }
  return code | (std::signbit(x) ? 8u : 0u);
}

static unsigned long long seen = 0, wrong = 0;

static void check(const float (&v)[16]) {
  float one[8];
  float2 two[4], four[8];
  for (int i = 0; i < 8; i++) one[i] = v[i];
  for (int i = 0; i < 4; i++) two[i] = make_float2(v[2 * i], v[2 * i + 1]);
  for (int i = 0; i < 8; i++) four[i] = make_float2(v[2 * i], v[2 * i + 1]);
  uint32_t a = vllm::fp32_vec8_to_e2m1(one), b = vllm::fp32_vec8_to_e2m1(two);
  auto both = vllm::fp32_vec16_to_e2m1(four);
  for (int i = 0; i < 16; i++) {
    unsigned want = reference(v[i]), shift = 4 * (i % 8);
    bool good = ((i < 8 ? both.lo : both.hi) >> shift & 15) == want;
    if (i < 8) good = good && (a >> shift & 15) == want && (b >> shift & 15) == want;
    seen++;
    if (!good && wrong++ == 0)
      std::printf("%a (0x%08x), element %d: not 0x%x\n", v[i], __float_as_uint(v[i]), i, want);
  }
}

static float batch[16];
static int filled = 0;
static void feed(unsigned bits) {
  batch[filled++] = __uint_as_float(bits);
  if (filled == 16) { check(batch); filled = 0; }
}

int main() {
  for (unsigned sign = 0; sign <= 1; sign++) {
    unsigned s = sign << 31;
    // every exponent and the leading mantissa bits, with the least bits around both ends:
    // denormals, infinities, NaNs
    for (unsigned top = 0; top < 0x8000; top++)
      for (unsigned low : {0u, 1u, 2u, 0x7fffu, 0x8000u, 0x8001u, 0xfffeu, 0xffffu})
        feed(s | top << 16 | low);
    // the whole neighbourhood of every midpoint and every value
    for (unsigned c = 0; c < 7; c++)
      for (float middle : {(VALUES[c] + VALUES[c + 1]) / 2, VALUES[c], VALUES[c + 1]})
        for (int d = -50000; d <= 50000; d++)
          feed(s | ((__float_as_uint(middle) + d) & 0x7fffffff));
  }
  unsigned state = 1;
  for (int i = 0; i < 4000000; i++) { state = state * 1664525u + 1013904223u; feed(state); }
  std::printf("%llu values, %llu wrong\n", seen, wrong);
  return wrong ? 1 : 0;
}
"""


def uses(text: str) -> int:
    """How often code, not a comment, holds the instruction."""
    return len(INSTRUCTION.findall(COMMENT.sub("", text)))


def write_probe(folder: Path, header: Path, name: str, before: str, after: str) -> Path:
    """A source that holds the header, and stand-ins for torch's headers that it includes."""
    for inside in ("torch/headeronly/util", "c10/util"):
        (folder / inside).mkdir(parents=True, exist_ok=True)
        for stub in ("BFloat16", "Half"):
            (folder / inside / f"{stub}.h").write_text('#include "torch_standin.h"\n')
    (folder / "torch_standin.h").write_text(TORCH)
    included = [STANDARD, "#include <algorithm>", "#include <cstdio>"]
    included += ['#include "torch_standin.h"', CUDA]
    path = folder / name
    path.write_text("\n".join([*included, before, f'#include "{header}"', after]))
    return path


def includes(tree: Path, header: Path) -> list[str]:
    """Where a build of vLLM looks for the header's own includes."""
    roots = [header.parents[2], header.parents[3], tree / "csrc", proofkit.cuda_home() / "include"]
    return ["-I.", *(f"-I{path}" for path in roots)]


def targets(tree: Path, header: Path, folder: Path) -> Iterator[str]:
    """What is wrong with the code for some target."""
    probe = write_probe(folder, header, "probe.cu", "", DEVICE)
    total, flags = uses(proofkit.read(header)), includes(tree, header)
    # the first with features shows that the toolchain works: then a plain one says enough
    for target in (FEATURED[0], *PLAIN, *FEATURED[1:]):
        code, said, ptx = proofkit.nvcc(probe, target, *flags)
        if target in PLAIN:
            if code:
                yield f"plain sm_{target} does not compile: {proofkit.first_error(said)}"
                return
            continue
        if code:
            error = proofkit.first_error(said)
            what = f"the header does not compile for sm_{target} here: {error}"
            raise proofkit.Inconclusive(what)
        if (lost := total - len(INSTRUCTION.findall(ptx))) > 0:
            what = f"{lost} of {total} conversions do without it"
            yield f"sm_{target} has the instruction, and {what}"


def numbers(tree: Path, header: Path, folder: Path) -> tuple[int, str]:
    """Whether the software conversion computes anything wrongly, and what."""
    probe = write_probe(folder, header, "host.cpp", HOST_PRELUDE, HOST_MAIN)
    flags = ["-std=c++17", "-O2", "-w", "-fpermissive", "-DCUDART_VERSION=13000"]
    argv = ["g++", *flags, *includes(tree, header), probe.name, "-o", "host"]
    code, said = proofkit.command(argv, folder)
    if code:
        error = proofkit.first_error(said)
        what = f"the software conversion does not compile for the host: {error}"
        raise proofkit.Inconclusive(what)
    code, said = proofkit.command([folder / "host"])
    return code, said.strip().partition("\n")[0] or f"exit {code}"


def elsewhere(tree: Path, header: Path, folder: Path) -> Iterator[str]:
    """Other sources that show the instruction to a plain target, or hide it from a featured one."""
    for path in proofkit.holding(tree / "csrc", rf".*({'|'.join(CODE)})", INSTRUCTION.pattern):
        text = proofkit.read(path)
        total = uses(text)
        if not total or path == header:
            continue
        bare = re.sub(r"^[ \t]*#include.*$", "", text, flags=re.MULTILINE)
        (folder / "bare.cpp").write_text(bare)
        for target, values in PREDEFINED.items():
            macros = [
                f"-D{name}={value}" for name, value in zip(MACROS, values, strict=True) if value
            ]
            argv = ["g++", "-E", "-P", "-x", "c++", "-DCUDART_VERSION=13000", "-D__CUDACC__"]
            code, said = proofkit.command([*argv, *macros, "bare.cpp"], folder)
            if code:
                error = proofkit.first_error(said)
                raise proofkit.Inconclusive(f"{path.name} does not preprocess: {error}")
            seen, wanted = len(INSTRUCTION.findall(said)), 0 if target == "sm_121" else total
            if seen != wanted:
                yield f"{path.name}: {target} sees the instruction {seen} times, not {wanted}"


def judge(tree: Path) -> proofkit.Verdict:
    """The symptom is a plain target without code, a featured one without hardware, wrong bits."""
    header = next((tree / name for name in HEADERS if (tree / name).is_file()), None)
    if header is None:
        raise proofkit.Inconclusive("nvfp4_utils.cuh is nowhere that it has been")
    proofkit.require("nvcc", "g++")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if found := [*elsewhere(tree, header, folder), *targets(tree, header, folder)]:
            return proofkit.verdict(found, right="")
        code, seen = numbers(tree, header, folder)
    right = f"plain targets convert in software to the same bits, others in hardware ({seen})"
    return proofkit.verdict([f"the software conversion is wrong: {seen}"] if code else [], right)


if __name__ == "__main__":
    proofkit.main(judge)
