"""Compiles vLLM's conversions of floats to E2M1 for several GPUs, and computes with what a plain target gets.

    IMAGEFACTORY_CUDA=CUDA_HOME python proof.py TREE

The header ``nvfp4_utils.cuh`` is compiled as it is, with stand-ins for torch's types, in a kernel that calls each of its
conversions. For a target with the features of its architecture or family (sm_121a, sm_120f, sm_100a) every conversion must
be the instruction; for a plain one (sm_121, sm_120), which has no such instruction, it must be something that ptxas takes.
What that is, is compiled for the host and held against a reference of its own: nearest value, ties to the even code,
saturating, NaN of either sign to 0x7, -0 to 0x8, element i in nibble i. Other files whose code holds the instruction are
put through the preprocessor, as for a plain target, one of a family and one of an architecture: the first must not see
it, the others must.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

TREE = pathlib.Path(sys.argv[1]).resolve()
HEADERS = [TREE / f"csrc/{part}quantization/fp4/nvfp4_utils.cuh" for part in ("", "libtorch_stable/")]
INSTRUCTION = re.compile(r"cvt\.rn\.satfinite\.e2m1x2\.f32")
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
CODE = (".cu", ".cuh", ".h", ".hpp", ".inl")
PLAIN, FEATURED = ("121", "120"), ("121a", "120f", "100a")
# what nvcc defines for some of them
PREDEFINED = {
    "sm_121": ["-D__CUDA_ARCH__=1210"],
    "sm_120f": ["-D__CUDA_ARCH__=1200", "-D__CUDA_ARCH_FAMILY_SPECIFIC__=1200"],
    "sm_121a": ["-D__CUDA_ARCH__=1210", "-D__CUDA_ARCH_FAMILY_SPECIFIC__=1210", "-D__CUDA_ARCH_SPECIFIC__=1210"],
}
RIGHT, SYMPTOM, UNTOLD = 0, 1, 3

TORCH = """
#pragma once
namespace c10 { struct Half {}; struct BFloat16 {}; }
namespace at { using c10::Half; using c10::BFloat16; }
namespace torch { namespace headeronly { using c10::Half; using c10::BFloat16; } }
"""
CUDA = "\n".join(f"#include <{name}>" for name in ("cuda_runtime.h", "cuda_fp16.h", "cuda_bf16.h", "cuda_fp8.h"))
STANDARD = "\n".join(f"#include <{name}>" for name in ("cassert", "cmath", "cstdint", "cstring", "type_traits", "utility"))

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

# what the header asks of the device: only what a conversion may use is given a body, the rest is declared
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
    // every exponent and the leading mantissa bits, with the least bits around both ends: denormals, infinities, NaNs
    for (unsigned top = 0; top < 0x8000; top++)
      for (unsigned low : {0u, 1u, 2u, 0x7fffu, 0x8000u, 0x8001u, 0xfffeu, 0xffffu}) feed(s | top << 16 | low);
    // the whole neighbourhood of every midpoint and every value, found by bisection of the reference itself
    for (unsigned c = 0; c < 7; c++)
      for (float middle : {(VALUES[c] + VALUES[c + 1]) / 2, VALUES[c], VALUES[c + 1]})
        for (int d = -50000; d <= 50000; d++) feed(s | ((__float_as_uint(middle) + d) & 0x7fffffff));
  }
  unsigned state = 1;
  for (int i = 0; i < 4000000; i++) { state = state * 1664525u + 1013904223u; feed(state); }
  std::printf("%llu values, %llu wrong\n", seen, wrong);
  return wrong ? 1 : 0;
}
"""


class Untold(Exception):
    """This machine, or this proof, cannot tell."""


def run(argv, folder):
    """A program's exit code and what it said."""
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, errors="replace")
    return done.returncode, done.stdout + done.stderr


def uses(text):
    """How often code, not a comment, holds the instruction."""
    return len(INSTRUCTION.findall(COMMENT.sub("", text)))


def last(text):
    """The line that tells most."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if "error" in line.lower() or "not supported" in line.lower()]
    return (telling or lines or ["nothing was said"])[0]


def write_probe(folder, header, name, *parts):
    """A source that holds the header, and stand-ins for the headers of torch that it includes."""
    for place in ("torch/headeronly/util", "c10/util"):
        (folder / place).mkdir(parents=True, exist_ok=True)
        for stub in ("BFloat16", "Half"):
            (folder / place / f"{stub}.h").write_text('#include "torch_standin.h"\n')
    (folder / "torch_standin.h").write_text(TORCH)
    before, after = parts
    text = [STANDARD, "#include <algorithm>", "#include <cstdio>", '#include "torch_standin.h"', CUDA, before]
    (folder / name).write_text("\n".join([*text, f'#include "{header.resolve()}"', after]))
    return name


def includes(header, cuda):
    """Where a build of vLLM looks for the header's own includes."""
    roots = [header.parents[2], header.parents[3], TREE / "csrc"]
    return [f"-I{path}" for path in (pathlib.Path("."), *roots, cuda / "include")]


def compiled(target, source, header, cuda, folder):
    """Exit code, output, and how many conversions are the instruction, for one target."""
    kept = folder / target
    kept.mkdir()
    argv = [str(cuda / "bin/nvcc"), "-std=c++17", f"-gencode=arch=compute_{target},code=sm_{target}", "-cubin", "-w"]
    code, said = run([*argv, *includes(header, cuda), "--keep", "--keep-dir", str(kept), "-o", f"{target}.cubin", source], folder)
    made = "".join(path.read_text(errors="replace") for path in kept.glob("*.ptx"))
    return code, said, len(INSTRUCTION.findall(made))


def targets(header, cuda, folder):
    """What is wrong with the code for some target."""
    source = write_probe(folder, header, "probe.cu", "", DEVICE)
    total = uses(header.read_text(errors="replace"))
    for target in FEATURED:
        code, said, count = compiled(target, source, header, cuda, folder)
        if code:
            raise Untold(f"the header does not compile for sm_{target} here: {last(said)}")
        if count < total:
            yield f"sm_{target} has the instruction, and {total - count} of {total} conversions do without it"
    for target in PLAIN:
        code, said, _ = compiled(target, source, header, cuda, folder)
        if code:
            yield f"plain sm_{target} does not compile: {re.sub('.*error *: *', '', last(said))}"


def numbers(header, cuda, folder):
    """What the software conversion computes wrongly."""
    source = write_probe(folder, header, "host.cpp", HOST_PRELUDE, HOST_MAIN)
    argv = ["g++", "-std=c++17", "-O2", "-w", "-fpermissive", "-DCUDART_VERSION=13000"]
    code, said = run([*argv, *includes(header, cuda), source, "-o", "host"], folder)
    if code:
        raise Untold(f"the software conversion does not compile for the host: {last(said)}")
    code, said = run(["./host"], folder)
    if code:
        yield f"the software conversion is wrong: {said.strip().splitlines()[0] if said.strip() else f'exit {code}'}"
    else:
        print(said.strip())


def elsewhere(header, folder):
    """Other sources in which a plain target sees the instruction, or one with its features does not."""
    for path in sorted(path for path in (TREE / "csrc").rglob("*") if path.suffix in CODE and path != header):
        text = path.read_text(errors="replace")
        total = uses(text)
        if not total:
            continue
        bare = "\n".join("" if line.lstrip().startswith("#include") else line for line in text.splitlines())
        (folder / "bare.cpp").write_text(bare)
        for target, macros in PREDEFINED.items():
            argv = ["g++", "-E", "-P", "-x", "c++", "-DCUDART_VERSION=13000", "-D__CUDACC__", *macros, "bare.cpp"]
            code, said = run(argv, folder)
            if code:
                raise Untold(f"{path.name} does not preprocess: {last(said)}")
            seen, wanted = len(INSTRUCTION.findall(said)), 0 if target == "sm_121" else total
            if seen != wanted:
                yield f"{path.name}: {target} sees the instruction {seen} times, not {wanted}"


def main():
    """Exit 0, 1 or 3, with one sentence."""
    cuda = pathlib.Path(os.environ.get("IMAGEFACTORY_CUDA") or "/nonexistent").resolve()
    header = next((path for path in HEADERS if path.is_file()), None)
    try:
        if header is None:
            raise Untold("nvfp4_utils.cuh is in none of the places that it has been in")
        if not os.access(cuda / "bin/nvcc", os.X_OK) or not shutil.which("g++"):
            raise Untold("needs g++, and a CUDA toolchain in IMAGEFACTORY_CUDA")
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            faults = [*elsewhere(header, folder), *targets(header, cuda, folder)]
            faults = faults or list(numbers(header, cuda, folder))
    except (Untold, OSError) as reason:
        print(f"cannot be told: {reason}")
        return UNTOLD
    print("; ".join(faults) or "plain sm_121 and sm_120 convert in software to the same bits; with features, in hardware")
    return SYMPTOM if faults else RIGHT


sys.exit(main())
