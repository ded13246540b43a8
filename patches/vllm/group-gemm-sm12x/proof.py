"""Asks vLLM's C++ code which GPUs have a grouped FP8 GEMM, and calls it for each of them.

``cutlass_group_gemm_supported`` and ``cutlass_moe_mm`` of ``scaled_mm_entry.cu`` are compiled with
g++. Tensors are stand-ins, and every kernel notes that it was called. This is done with the
ENABLE_… of the official wheels (9.0, 10.0 and 12.x) and with those of a build for 12.x. On 12.0 and
12.1 nothing may be promised that is then refused; 9.0, 10.0 and 10.3 have kernels in the wheels,
which must be promised and reached, 9.0 already with CUDA 12.3. ``vllm/_custom_ops.py``, which is
asked before, is run as well, to say what users see of it.
"""

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import proofkit

ENTRIES = [
    f"csrc/{part}quantization/w8a8/cutlass/scaled_mm_entry.cu" for part in ("", "libtorch_stable/")
]
ASKED, CALLED = "cutlass_group_gemm_supported", "cutlass_moe_mm"
#: What is built, and with which CUDA.
BUILDS = {
    "wheel": (13000, ("CUTLASS_MOE_SM90", "CUTLASS_MOE_SM100", "CUTLASS_MOE_SM120")),
    "own": (13000, ("CUTLASS_MOE_SM120",)),
    "hopper": (12030, ("CUTLASS_MOE_SM90",)),
}
SHOWN = {"wheel": "the wheel", "own": "a build for 12.x"}
#: GPUs that the wheel has a kernel for, GPUs without any, and those that this is about.
WITH, WITHOUT, SM12X = (90, 100, 103), (75, 80, 89), (120, 121)
PROGRAM = r"""
#include <cstdint>
#include <cstdio>
#include <initializer_list>
static int capability;
static const char* reached;
namespace torch {
struct Tensor {};
namespace stable { using torch::Tensor; }
}  // namespace torch
static int32_t get_sm_version_num() { return capability; }
#define TORCH_CHECK(condition, ...) do { if (!(condition)) throw 0; } while (0)
#define TORCH_CHECK_NOT_IMPLEMENTED TORCH_CHECK
#define STD_TORCH_CHECK TORCH_CHECK
#define STD_TORCH_CHECK_NOT_IMPLEMENTED TORCH_CHECK
KERNELS
BUILDS
template <typename A, typename C> void ask(const char* build, A supported, C call) {
  for (int gpu : {GPUS}) {
    capability = gpu;
    reached = "nothing";
    torch::Tensor t;
    try { call(t, t, t, t, t, t, t, t, t, t, false, false); } catch (int) { reached = "refused"; }
    std::printf("%s\t%d\t%d\t%s\n", build, gpu, (int)supported(gpu), reached);
  }
}
int main() {
  ASK
}
"""
#: By build and GPU (121 for 12.1): whether a kernel is promised, and what is called.
Answers = dict[tuple[str, int], tuple[bool, str]]


def function(text: str, name: str) -> str:
    """A function of the source."""
    found = re.search(
        rf"^(?:\w+ )+{name}\([^;{{]*\) \{{(?:[^\n]*\}}$|.*?^\}})", text, re.MULTILINE | re.DOTALL
    )
    if not found:
        raise proofkit.Inconclusive(f"there is no function {name}")
    return found[0]


def program(text: str) -> str:
    """Both functions in each build, and the questions."""
    parts = "\n".join([function(text, ASKED), function(text, CALLED)])
    helpers = re.findall(
        r"^(?:static|inline|constexpr) [\w ]*?(\w+)\([^;{]*\) \{", text, re.MULTILINE
    )
    called = [name for name in dict.fromkeys(helpers) if f"{name}(" in parts]
    parts = "\n".join([*(function(text, name) for name in called), parts])
    names = sorted(set(re.findall(rf"\b({CALLED}_sm\w+)\(", parts)))
    kernels = [f'template <class... A> void {n}(A&&...) {{ reached = "{n}"; }}' for n in names]
    builds, asked = list[str](), list[str]()
    for build, (cuda, enabled) in BUILDS.items():
        builds += [f"#undef CUDA_VERSION\n#define CUDA_VERSION {cuda}"]
        builds += [f"#define ENABLE_{flag} 1" for flag in enabled]
        builds += [f"namespace {build} {{\n{parts}\n}}"]
        builds += [f"#undef ENABLE_{flag}" for flag in enabled]
        asked.append(f'ask("{build}", {build}::{ASKED}, {build}::{CALLED});')
    made = PROGRAM.replace("KERNELS", "\n".join(kernels)).replace("BUILDS", "\n".join(builds))
    gpus = ", ".join(map(str, (*WITH, *WITHOUT, *SM12X)))
    return made.replace("GPUS", gpus).replace("ASK", "\n  ".join(asked))


def answers(text: str) -> Answers:
    """What the program says."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "all.cpp").write_text(program(text), encoding="utf-8")
        argv = ["g++", "-std=c++20", "-w", "-O0", "all.cpp", "-o", "all"]
        code, said = proofkit.command(argv, folder)
        if code:
            error = proofkit.first_error(said)
            raise proofkit.Inconclusive(f"the functions do not compile with stand-ins: {error}")
        code, said = proofkit.command([folder / "all"])
    if code:
        raise proofkit.Inconclusive(f"the functions end with {code}: {said[-300:]}")
    rows = (line.split("\t") for line in said.splitlines())
    return {(build, int(gpu)): (yes == "1", reached) for build, gpu, yes, reached in rows}


def hidden(tree: Path) -> bool:
    """Whether Python says no on 12.1 although C++ says yes."""
    native = SimpleNamespace(**{ASKED: lambda _capability: True})
    space: proofkit.Space = {"torch": SimpleNamespace(ops=SimpleNamespace(_C=native))}
    return not proofkit.Source(tree / "vllm/_custom_ops.py").run([ASKED], space)[ASKED](121)


def symptoms(seen: Answers, caller: str) -> Iterator[str]:
    """Promises without a kernel, and kernels that are not promised."""
    for build, what in SHOWN.items():
        for gpu in SM12X:
            promised, reached = seen[build, gpu]
            if promised != reached.startswith(f"{CALLED}_sm"):
                says = "promises" if promised else "does not promise"
                yield f"{what} {says} a grouped FP8 GEMM on {gpu / 10} ({reached}); {caller}"
        for gpu in WITHOUT:
            if seen[build, gpu][0]:
                yield f"{what} promises a grouped FP8 GEMM on {gpu / 10}"
    if not seen["hopper", 90][0]:
        yield "a build for 9.0 with CUDA 12.3 does not promise its grouped FP8 GEMM"
    for gpu in WITH:
        wanted = f"{CALLED}_sm{90 if gpu < 100 else 100}"
        if seen["wheel", gpu] != (True, wanted):
            yield f"the wheel does not promise or not reach {wanted} on {gpu / 10}"


def judge(tree: Path) -> proofkit.Verdict:
    """The symptom is a grouped GEMM that is promised on 12.x, and refuses."""
    proofkit.require("g++")
    entry = next((tree / name for name in ENTRIES if (tree / name).is_file()), None)
    if entry is None:
        raise proofkit.Inconclusive("scaled_mm_entry.cu is nowhere that it has been")
    caller = f"_custom_ops.py {'says no before it asks' if hidden(tree) else 'asks'}"
    right = "12.x is promised no grouped FP8 GEMM that is not there; 9.0, 10.0 and 10.3 have theirs"
    return proofkit.verdict(symptoms(answers(proofkit.read(entry)), caller), right)


if __name__ == "__main__":
    proofkit.main(judge)
