"""Asks FlashInfer for which target it compiles on a GB10, and compiles its E2M1 conversions.

FlashInfer's own ``CompilationContext`` runs with a stand-in for torch that reports capability 12.1,
for every way in which a user can name the machine. For each target that comes out, the conversions
of ``quantization_utils.cuh`` and of CUTLASS (``float_e2m1_t``) are compiled, and must be the
instruction: an error, a function that stores zeros (what the headers do where they know nothing
better) or software instead of hardware is the symptom.
"""

import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import proofkit

CONTEXT = "flashinfer/compilation_context.py"
DATA = "flashinfer/data"
UTILITIES = f"{DATA}/csrc/nv_internal/tensorrt_llm/kernels/quantization_utils.cuh"
LIST = "FLASHINFER_CUDA_ARCH_LIST"
#: Empty is a machine that says by itself what it is.
NAMED = ("", "12.1", "12.1a", "12.0f")
INSTRUCTION = re.compile(r"cvt\.rn\.satfinite\.e2m1x2\.f32")

UTILITIES_KERNEL = """
__global__ void probe(const float* in, unsigned long long* out) {
  float one[8];
  float2 two[4];
  for (int i = 0; i < 8; i++) one[i] = in[i];
  for (int i = 0; i < 4; i++) two[i] = make_float2(in[2 * i + 8], in[2 * i + 9]);
  out[0] = fp32_vec_to_e2m1(one);
  out[1] = fp32_vec_to_e2m1(two);
}
"""
CUTLASS_KERNEL = """
#include <cutlass/numeric_conversion.h>
__global__ void probe(const cutlass::Array<float, 8>* in,
                      cutlass::Array<cutlass::float_e2m1_t, 8>* out) {
  *out = cutlass::NumericArrayConverter<cutlass::float_e2m1_t, float, 8>{}(*in);
}
"""


def target(tree: Path, named: str) -> str:
    """What FlashInfer hands to nvcc on a GB10, as ``121a``, if the list is ``named``."""
    gpu = {"device_count": lambda: 1, "get_device_capability": lambda _device: (12, 1)}
    made: dict[str, dict[str, object]] = {
        "torch": {"cuda": SimpleNamespace(**gpu)},
        "flashinfer.jit": {"env": SimpleNamespace(CUTLASS_INCLUDE_DIRS=[])},
        "flashinfer.jit.cpp_ext": {
            "is_cuda_version_at_least": lambda _version: True,
            "get_cuda_path": lambda: "/nonexistent",
        },
    }
    context = proofkit.Source(tree / CONTEXT)
    with proofkit.modules(made), mock.patch.dict(os.environ, {LIST: named}):
        if not named:
            del os.environ[LIST]
        space = context.run(context.module.body, {"__name__": "flashinfer.compilation_context"})
        flags = space["CompilationContext"]().get_nvcc_flags_list([12])
    found = [match[1] for flag in flags if (match := re.search(r"code=sm_(\w+)", flag))]
    if len(found) != 1:
        raise proofkit.Inconclusive(f"one target was expected, not {found}")
    return str(found[0])


def conversions(header: Path) -> str:
    """The functions that convert eight values, out of a header that includes TensorRT-LLM's."""
    text = proofkit.read(header)
    function = re.compile(r"^inline __device__ uint32_t fp32_vec_to_e2m1\(", re.MULTILINE)
    starts = [match.start() for match in function.finditer(text)]
    if len(starts) != 2:
        what = f"{len(starts)} conversions of eight values in {header.name}, two were expected"
        raise proofkit.Inconclusive(what)
    parts = [text[start : text.index("\n}\n", start) + 3] for start in starts]
    return "\n".join(["#include <cstdint>", *parts])


def fault(source: str, wanted: int, sm: str, data: Path) -> str:
    """What is wrong with the code that one source becomes for one target; empty if nothing."""
    flags = (f"-I{data / 'cutlass/include'}", "--expt-relaxed-constexpr")
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "probe.cu")
        path.write_text(source, encoding="utf-8")
        code, said, ptx = proofkit.nvcc(path, sm, *flags)
    if code:
        return f"does not compile: {proofkit.first_error(said)}"
    count = len(INSTRUCTION.findall(ptx))
    return f"has {count} instructions, not {wanted}" if count < wanted else ""


def symptoms(tree: Path, targets: dict[str, str]) -> Iterator[str]:
    """Every way to name the machine that leads to a conversion that is not the instruction."""
    own = conversions(tree / UTILITIES) + UTILITIES_KERNEL
    sources = {"quantization_utils.cuh": (own, 8), "CUTLASS": (CUTLASS_KERNEL, 4)}
    faults = {
        (name, sm): fault(source, wanted, sm, tree / DATA)
        for sm in sorted(set(targets.values()))
        for name, (source, wanted) in sources.items()
    }
    for named, sm in targets.items():
        way = f"{LIST}={named}" if named else "the machine's own capability"
        for name in sources:
            if faults[name, sm]:
                yield f"{way} gives sm_{sm}: {name} {faults[name, sm]}"


def judge(tree: Path) -> proofkit.Verdict:
    """The symptom is a way to name a GB10 that makes FlashInfer convert without the instruction."""
    proofkit.require("nvcc", "g++")
    targets = {named: target(tree, named) for named in NAMED}
    seen = ", ".join(f"{named or 'default'}: sm_{sm}" for named, sm in targets.items())
    right = f"however a GB10 is named, FlashInfer converts to E2M1 in hardware ({seen})"
    return proofkit.verdict(symptoms(tree, targets), right)


if __name__ == "__main__":
    proofkit.main(judge)
