"""FlashInfer on a GB10.

Which target it compiles for, and that CUDA's own FP4 headers are enough.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.mutants import SETTINGS, measured, weakened
from support.proofs import judged

from imagefactory.inbuild import proofkit
from imagefactory.patching import sources
from imagefactory.patching.measure import copy_of

pytestmark = pytest.mark.e2e

TARGETS, HEADERS = "flashinfer/e2m1-targets", "flashinfer/cuda-fp4-headers"


@pytest.fixture
def tree() -> Iterator[Path]:
    """A copy of an installed FlashInfer.

    Files that are changed must be written anew, for they are links.
    """
    with copy_of(sources.fetch("flashinfer", "0.6.12", SETTINGS).root) as copy:
        yield copy


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.unlink()
    path.write_text(text.replace(old, new))


def proof(name: str, tree: Path, cuda: Path) -> tuple[int, str]:
    return judged(name, tree, {proofkit.CUDA: str(cuda)})


@pytest.mark.parametrize(
    ("version", "state"), [("0.6.3", "needed"), ("0.6.6", "needed"), ("0.6.12", "obsolete")]
)
def test_a_plain_list_is_a_plain_target_up_to_0_6_6(version: str, state: str, cuda: Path) -> None:
    row = measured(TARGETS, version, cuda=cuda)
    assert row.state == state, row.reason


@pytest.mark.parametrize(
    ("old", "new"), [("major >= 9", "major >= 13"), ('minor += "a"', 'minor += ""')]
)
def test_a_patch_that_adds_no_suffix_turns_the_proof_red(
    tmp_path: Path, cuda: Path, old: str, new: str
) -> None:
    row = measured(
        TARGETS, "0.6.3", cuda=cuda, diff=weakened(TARGETS, "0.6.3", [(old, new)], tmp_path)
    )
    assert row.state == "broken"
    assert "FLASHINFER_CUDA_ARCH_LIST=12.1 gives sm_121" in row.reason


def test_guards_that_are_turned_off_leave_functions_that_return_zero(
    tree: Path, cuda: Path
) -> None:
    header = tree / "flashinfer/data/csrc/nv_internal/tensorrt_llm/kernels/quantization_utils.cuh"
    change(header, "(__CUDA_ARCH__ >= 1000)", "(__CUDA_ARCH__ >= 9000)")
    code, said = proof(TARGETS, tree, cuda)
    assert code == 1
    assert "quantization_utils.cuh has 0 instructions, not 8" in said


def test_a_header_that_defines_a_type_once_more_is_harm(tree: Path, cuda: Path) -> None:
    header = tree / "flashinfer/data/include/flashinfer/vec_dtypes.cuh"
    change(
        header,
        "#include <cuda_fp4.h>",
        "#include <cuda_fp4.h>\nstruct __nv_fp4_e2m1 { unsigned char x; };",
    )
    code, said = proof(HEADERS, tree, cuda)
    assert code == 1
    assert "do not compile" in said


def test_a_header_that_stands_in_for_cudas_and_is_wrong_is_harm(tree: Path, cuda: Path) -> None:
    for name in ("cuda_fp4.h", "cuda_fp4.hpp"):
        text = (cuda / "include" / name).read_text()
        changed = text.replace("FP4_MAXNORM = 0x7U;", "FP4_MAXNORM = 0x6U;").replace(
            "FP4_EXP_BIAS = 1U", "FP4_EXP_BIAS = 2U"
        )
        (tree / "flashinfer/data/include" / name).write_text(changed)
    code, said = proof(HEADERS, tree, cuda)
    assert code == 1
    assert "the FP4 types are wrong" in said


@pytest.mark.parametrize("version", ["0.6.3", "0.7.2.post1"])
def test_the_toolkits_headers_are_enough(version: str, cuda: Path) -> None:
    row = measured(HEADERS, version, cuda=cuda)
    assert row.state == "obsolete", row.reason


@pytest.mark.parametrize("name", [TARGETS, HEADERS])
def test_without_a_toolchain_nothing_is_claimed(name: str) -> None:
    assert measured(name, "0.6.12").state == "unknown"
