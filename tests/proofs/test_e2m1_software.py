"""The proof of vllm/e2m1-software, on a header small enough to read.

With a compiler that only knows targets.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.proofs import judged

from imagefactory.inbuild import proofkit

HEADER = "csrc/quantization/fp4/nvfp4_utils.cuh"
PLAIN = (
    "defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_SPECIFIC__) && "
    "!defined(__CUDA_ARCH_FAMILY_SPECIFIC__)"
)

CONVERSION = """\
  uint32_t v = 0;
  for (int i = 0; i < 8; i++) v |= code(values[i]) << (4 * i);
  return v;
"""
SOFTWARE = f"""\
#pragma once
#define SOFTWARE ({PLAIN})
namespace vllm {{
inline __device__ uint32_t code(float x) {{
  float a = fabsf(x);
  uint32_t sign = __float_as_uint(x) >> 28 & 8;
  if (a != a) return 7;
  if (a <= 0.25f) return sign;
  if (a < 0.75f) return sign | 1;
  if (a <= 1.25f) return sign | 2;
  if (a < 1.75f) return sign | 3;
  if (a <= 2.5f) return sign | 4;
  if (a < 3.5f) return sign | 5;
  return a <= 5.0f ? sign | 6 : sign | 7;
}}
inline __device__ uint32_t pack(const float* values) {{
{CONVERSION}}}
inline __device__ uint32_t fp32_vec8_to_e2m1(float (&array)[8]) {{
#if SOFTWARE
  return pack(array);
#else
  asm volatile("cvt.rn.satfinite.e2m1x2.f32 ...");
#endif
}}
inline __device__ uint32_t fp32_vec8_to_e2m1(float2 (&array)[4]) {{
#if SOFTWARE // the pairs lie one behind the other
  return pack(&array[0].x);
#else
  asm volatile("cvt.rn.satfinite.e2m1x2.f32 ...");
#endif
}}
struct u32x2 {{ uint32_t lo, hi; }};
inline __device__ u32x2 fp32_vec16_to_e2m1(float2 (&array)[8]) {{
#if SOFTWARE && 1
  return {{pack(&array[0].x), pack(&array[4].x)}};
#else
  asm volatile("cvt.rn.satfinite.e2m1x2.f32 ..."
               "cvt.rn.satfinite.e2m1x2.f32 ...");
#endif
}}
}}
"""
RUNTIME = """\
#pragma once
#define __global__
#define __device__
struct float2 { float x, y; };
struct uint3 { unsigned x, y, z; };
struct dim3 { unsigned x, y, z; };
inline float2 make_float2(float x, float y) { return {x, y}; }
"""
# gives the preprocessed text as PTX; like ptxas, it refuses the instruction to plain targets
NVCC = """\
#!{python} -B
import pathlib, subprocess, sys
argv = sys.argv[1:]
target = next(a for a in argv if a.startswith("-gencode")).rpartition("sm_")[2]
arch = target.rstrip("af") + "0"
macros = ["-D__CUDA_ARCH__=" + arch]
macros += ["-D__CUDA_ARCH_FAMILY_SPECIFIC__=" + arch] * (target[-1] in "af")
macros += ["-D__CUDA_ARCH_SPECIFIC__=" + arch] * target.endswith("a")
paths = [a for a in argv if a.startswith("-I")]
compiler = ["g++", "-E", "-P", "-x", "c++", *macros, *paths, argv[-1]]
done = subprocess.run(compiler, capture_output=True, text=True)
pathlib.Path(argv[argv.index("--keep-dir") + 1], "probe.ptx").write_text(done.stdout)
if "e2m1x2" in done.stdout and target[-1] not in "af":
    error = "ptxas, line 9; error : Instruction 'cvt with .e2m1x2' not supported on .target "
    sys.exit(error + "'sm_" + target + "'")
sys.exit(done.returncode)
"""


@pytest.fixture(scope="module")
def toolchain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with bin/nvcc and the headers that vLLM's includes."""
    root = tmp_path_factory.mktemp("cuda")
    for folder in ("bin", "include"):
        (root / folder).mkdir()
    (root / "bin/nvcc").write_text(NVCC.format(python=sys.executable))
    (root / "bin/nvcc").chmod(0o755)
    for name in ("cuda_runtime.h", "cuda_fp16.h", "cuda_bf16.h", "cuda_fp8.h"):
        (root / "include" / name).write_text(RUNTIME if name == "cuda_runtime.h" else "")
    return root


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """vLLM's sources with the patch, as far as the proof reads them."""
    header = tmp_path / "tree" / HEADER
    header.parent.mkdir(parents=True)
    header.write_text(SOFTWARE)
    return tmp_path / "tree"


def prove(tree: Path, toolchain: Path | str | None, cwd: Path | None = None) -> tuple[int, str]:
    return judged("vllm/e2m1-software", tree, {proofkit.CUDA: str(toolchain or "")}, cwd=cwd)


def change(tree: Path, old: str, new: str) -> None:
    text = (tree / HEADER).read_text()
    assert text.count(old) == 1, f"{old!r} is there {text.count(old)} times"
    (tree / HEADER).write_text(text.replace(old, new))


def test_software_for_plain_targets_and_hardware_for_the_others_is_right(
    tree: Path, toolchain: Path
) -> None:
    before = {path: path.read_bytes() for path in tree.rglob("*") if path.is_file()}
    code, said = prove(tree, toolchain)
    assert code == 0, said
    assert {path: path.read_bytes() for path in tree.rglob("*") if path.is_file()} == before


def test_hardware_for_every_target_is_the_symptom(tree: Path, toolchain: Path) -> None:
    change(tree, f"#define SOFTWARE ({PLAIN})", "#define SOFTWARE 0")
    code, said = prove(tree, toolchain)
    assert code == 1
    assert (
        "plain sm_121 does not compile: Instruction 'cvt with .e2m1x2' not "
        "supported on .target 'sm_121'"
    ) in said


@pytest.mark.parametrize("conversion", ["SOFTWARE\n", "SOFTWARE // the", "SOFTWARE && 1"])
def test_one_forgotten_conversion_is_the_symptom(
    tree: Path, toolchain: Path, conversion: str
) -> None:
    change(tree, f"#if {conversion}", f"#if 0 && {conversion}")
    code, said = prove(tree, toolchain)
    assert code == 1
    assert "plain sm_121 does not compile" in said


@pytest.mark.parametrize(
    ("guard", "seen"),
    [
        (
            "__CUDA_ARCH__ == 1210",
            "sm_121a has the instruction, and 4 of 4 conversions do without it",
        ),
        ("__CUDA_ARCH__ >= 1200", "sm_120f has the instruction"),
        ("defined(__CUDA_ARCH__)", "sm_100a has the instruction"),
        (
            "defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_SPECIFIC__)",
            "sm_120f has the instruction",
        ),
    ],
)
def test_a_guard_that_switches_the_instruction_off_where_it_exists_is_wrong(
    tree: Path, toolchain: Path, guard: str, seen: str
) -> None:
    change(tree, f"#define SOFTWARE ({PLAIN})", f"#define SOFTWARE ({guard})")
    code, said = prove(tree, toolchain)
    assert code == 1
    assert seen in said


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("a <= 0.25f", "a < 0.25f"),
        ("a <= 1.25f", "a < 1.25f"),
        ("a <= 2.5f", "a < 2.5f"),
        ("a <= 5.0f", "a < 5.0f"),
        ("if (a != a) return 7;", "if (a != a) return sign | 7;"),
        ("if (a <= 0.25f) return sign;", "if (a <= 0.25f) return 0;"),
        ("<< (4 * i)", "<< (4 * (i ^ 1))"),
        ("{pack(&array[0].x), pack(&array[4].x)}", "{pack(&array[4].x), pack(&array[0].x)}"),
    ],
    ids=[
        "tie at 0.25",
        "tie at 1.25",
        "tie at 2.5",
        "tie at 5",
        "negative NaN",
        "negative zero",
        "nibbles",
        "words",
    ],
)
def test_wrong_bits_are_wrong(tree: Path, toolchain: Path, old: str, new: str) -> None:
    change(tree, old, new)
    code, said = prove(tree, toolchain)
    assert code == 1
    assert said.startswith("the software conversion is wrong: ")


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        (
            'asm("{\\n"\n    "cvt.rn.satfinite.e2m1x2.f32 t, %2, %1;\\n"\n',
            "sm_121 sees the instruction 1 times, not 0",
        ),
        (
            'unsigned v; asm volatile("cvt.rn.satfinite.e2m1x2.f32 t, %2, %1;");\n',
            "sm_121 sees the instruction",
        ),
        (
            'asm(R"(\n  cvt.rn.satfinite.e2m1x2.f32 t, %2, %1;\n)");\n',
            "sm_121 sees the instruction",
        ),
        (
            (
                '#ifdef __CUDA_ARCH_SPECIFIC__\nasm("cvt.rn.satfinite.e2m1x2.f32 t, '
                '%2, %1;");\n#endif\n'
            ),
            "sm_120f sees the instruction 0 times, not 1",
        ),
        (
            (
                "#ifdef "
                '__CUDA_ARCH_FAMILY_SPECIFIC__\nasm("cvt.rn.satfinite.e2m1x2.f32 t, %2, %1;");\n#endif\n'
            ),
            "",
        ),
        (
            (
                "// as cvt.rn.satfinite.e2m1x2.f32 does\n/* "
                "cvt.rn.satfinite.e2m1x2.f32\n */\nint none;\n"
            ),
            "",
        ),
    ],
    ids=["string", "one line", "raw string", "no family", "guarded", "comments"],
)
def test_another_file_with_the_instruction_needs_a_guard_too(
    tree: Path, toolchain: Path, text: str, seen: str
) -> None:
    (tree / "csrc/new_kernels.cu").write_text(text)
    code, said = prove(tree, toolchain)
    assert code == (1 if seen else 0), said
    assert (f"new_kernels.cu: {seen}" if seen else "") in said


def test_an_unknown_layout_is_inconclusive(tree: Path, toolchain: Path) -> None:
    (tree / HEADER).rename(tree / "csrc/nvfp4_utils.cuh")
    assert prove(tree, toolchain)[0] == 3


def test_a_header_that_never_compiles_is_inconclusive(tree: Path, toolchain: Path) -> None:
    change(tree, "#pragma once", '#include "not_there.h"')
    assert prove(tree, toolchain)[0] == 3


@pytest.mark.parametrize("broken", ["absent", "not executable", "no program"])
def test_without_a_toolchain_that_runs_nothing_is_claimed(
    tree: Path, tmp_path: Path, broken: str
) -> None:
    nvcc = tmp_path / "cuda/bin/nvcc"
    nvcc.parent.mkdir(parents=True)
    if broken != "absent":
        nvcc.write_text("no program")
        nvcc.chmod(0o755 if broken == "no program" else 0o644)
    assert prove(tree, tmp_path / "cuda")[0] == 3
    assert prove(tree, None)[0] == 3


def test_relative_paths_are_as_good(tree: Path, toolchain: Path) -> None:
    assert prove(tree, toolchain.name, cwd=toolchain.parent)[0] == 0
    assert prove(Path(tree.name), toolchain, cwd=tree.parent)[0] == 0
