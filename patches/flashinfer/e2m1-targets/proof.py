"""Asks FlashInfer for which target it compiles on a GB10, and compiles its conversions to E2M1 for that.

    IMAGEFACTORY_CUDA=CUDA_HOME python proof.py TREE

FlashInfer's own ``CompilationContext`` is run with a stand-in for torch that reports capability 12.1, for every way in
which a user can name the machine. For each target that comes out, the conversions of ``quantization_utils.cuh`` and of
CUTLASS (``float_e2m1_t``) are compiled, and must be the instruction: an error, a function that stores zeros (what the headers do
where they know nothing better) or software in the place of hardware is the symptom.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import types

TREE = pathlib.Path(sys.argv[1])
CONTEXT = TREE / "flashinfer/compilation_context.py"
DATA = TREE / "flashinfer/data"
UTILITIES = DATA / "csrc/nv_internal/tensorrt_llm/kernels/quantization_utils.cuh"
#: None is a machine that says by itself what it is.
NAMED = (None, "12.1", "12.1a", "12.0f")
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
__global__ void probe(const cutlass::Array<float, 8>* in, cutlass::Array<cutlass::float_e2m1_t, 8>* out) {
  *out = cutlass::NumericArrayConverter<cutlass::float_e2m1_t, float, 8>{}(*in);
}
"""


class Untold(Exception):
    """This machine, or this proof, cannot tell."""


def target(named):
    """What FlashInfer hands to nvcc on a GB10, as ``121a``; ``named`` is FLASHINFER_CUDA_ARCH_LIST."""
    torch = types.ModuleType("torch")
    torch.cuda = types.SimpleNamespace(device_count=lambda: 1, get_device_capability=lambda _device: (12, 1))
    cpp = types.ModuleType("flashinfer.jit.cpp_ext")
    cpp.is_cuda_version_at_least = lambda _version: True
    cpp.get_cuda_path = lambda: "/nonexistent"
    package, jit = types.ModuleType("flashinfer"), types.ModuleType("flashinfer.jit")
    jit.env = types.SimpleNamespace(CUTLASS_INCLUDE_DIRS=[])
    made = {"torch": torch, "flashinfer": package, "flashinfer.jit": jit, "flashinfer.jit.cpp_ext": cpp}
    before = {name: sys.modules.get(name) for name in made}
    os.environ.pop("FLASHINFER_CUDA_ARCH_LIST", None)
    if named:
        os.environ["FLASHINFER_CUDA_ARCH_LIST"] = named
    sys.modules.update(made)
    try:
        space = {"__name__": "flashinfer.compilation_context"}
        exec(compile(CONTEXT.read_text(), str(CONTEXT), "exec"), space)
        flags = space["CompilationContext"]().get_nvcc_flags_list([12])
    except Exception as error:
        raise Untold(f"CompilationContext does not run here: {error!r}") from error
    finally:
        for name, module in before.items():
            sys.modules.pop(name) if module is None else sys.modules.update({name: module})
    found = [match[1] for flag in flags if (match := re.search(r"code=sm_(\w+)", flag))]
    if len(found) != 1:
        raise Untold(f"one target was expected, and there are {found}")
    return found[0]


def extracted(path):
    """The functions that convert eight values, out of a header whose own includes are TensorRT-LLM's."""
    text = path.read_text()
    starts = [match.start() for match in re.finditer(r"^inline __device__ uint32_t fp32_vec_to_e2m1\(", text, re.MULTILINE)]
    if len(starts) != 2:
        raise Untold(f"{len(starts)} conversions of eight values in {path.name}, two were expected")
    return "#include <cstdint>\n" + "\n".join(text[start : text.index("\n}\n", start) + 3] for start in starts)


def compiled(name, source, target, cuda, folder):
    """Exit code, output and number of instructions of one source for one target."""
    kept = folder / f"{name}-{target}"
    kept.mkdir()
    (kept / "probe.cu").write_text(source)
    argv = [str(cuda / "bin/nvcc"), "-std=c++17", f"-gencode=arch=compute_{target},code=sm_{target}", "-cubin", "-w"]
    argv += [f"-I{DATA / 'cutlass/include'}", "--keep", "--expt-relaxed-constexpr", "-o", "probe.cubin", "probe.cu"]
    done = subprocess.run(argv, cwd=kept, capture_output=True, text=True, errors="replace")
    made = "".join(path.read_text(errors="replace") for path in kept.glob("*.ptx"))
    return done.returncode, done.stdout + done.stderr, len(INSTRUCTION.findall(made))


def faults(cuda, folder):
    """Every way to name the machine that leads to a conversion that is not the instruction."""
    sources = {"quantization_utils.cuh": (extracted(UTILITIES) + UTILITIES_KERNEL, 8), "CUTLASS": (CUTLASS_KERNEL, 4)}
    known = {}
    for named in NAMED:
        way = f"FLASHINFER_CUDA_ARCH_LIST={named}" if named else "the machine's own capability"
        sm = target(named)
        for name, (source, wanted) in sources.items():
            if (name, sm) not in known:
                known[name, sm] = compiled(name, source, sm, cuda, folder)
            code, said, count = known[name, sm]
            if code:
                lines = [line for line in said.splitlines() if "error" in line.lower()] or said.splitlines() or ["no message"]
                yield f"{way} gives sm_{sm}: {name} does not compile: {re.sub('.*error *: *', '', lines[0])}"
            elif count < wanted:
                yield f"{way} gives sm_{sm}: {name} has {count} instructions, not {wanted}"
    print("; ".join(f"{named or 'default'}: sm_{target(named)}" for named in NAMED))


def main():
    """Exit 0, 1 or 3, with one sentence."""
    cuda = pathlib.Path(os.environ.get("IMAGEFACTORY_CUDA") or "/nonexistent")
    try:
        if not CONTEXT.is_file() or not UTILITIES.is_file():
            raise Untold("FlashInfer is not laid out as it was")
        if not (cuda / "bin/nvcc").exists() or not shutil.which("g++"):
            raise Untold("needs g++, and a CUDA toolchain in IMAGEFACTORY_CUDA")
        with tempfile.TemporaryDirectory() as name:
            found = list(faults(cuda, pathlib.Path(name)))
    except Untold as reason:
        print(f"cannot be told: {reason}")
        return 3
    print("; ".join(found) or "however a GB10 is named, FlashInfer converts to E2M1 in hardware")
    return 1 if found else 0


sys.exit(main())
