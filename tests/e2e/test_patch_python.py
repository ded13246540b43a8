"""Entries about vLLM's Python: Qwen3-Next's names, the emulation's scales, FlashInfer's experts."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.mutants import SETTINGS, measured, weakened
from support.proofs import judged

from imagefactory.patching import sources
from imagefactory.patching.measure import copy_of

pytestmark = pytest.mark.e2e

PREFIX, SCALES, EXPERTS = (
    "vllm/qwen3-next-prefix",
    "vllm/nvfp4-emulation-scales",
    "vllm/flashinfer-moe-none",
)
GDN = "vllm/model_executor/layers/mamba/gdn/qwen_gdn_linear_attn.py"


@pytest.mark.parametrize(
    ("name", "version", "state"),
    [
        *(
            (PREFIX, version, "obsolete")
            for version in ("0.16.0", "0.17.1", "0.19.1", "0.22.1", "0.33.0")
        ),
        *((SCALES, version, "needed") for version in ("0.16.0", "0.19.1")),
        *((SCALES, version, "obsolete") for version in ("0.20.2", "0.33.0")),
        (EXPERTS, "0.16.0", "needed"),
        *((EXPERTS, version, "obsolete") for version in ("0.17.1", "0.23.0", "0.33.0")),
    ],
)
def test_states_are_as_published(name: str, version: str, state: str) -> None:
    row = measured(name, version)
    assert row.state == state, row.reason


@pytest.mark.parametrize(
    ("name", "version", "old", "new", "seen"),
    [
        (SCALES, "0.16.0", ") * global_scale", ") / global_scale", "times as large"),
        (SCALES, "0.16.0", ") * global_scale", ")", "times as large"),
        (
            SCALES,
            "0.19.1",
            "tensor_sf.to",
            "convert_swizzled_to_linear(tensor_sf, m, k, block_size).to",
            "degrees off",
        ),
        (EXPERTS, "0.16.0", "backend, k_cls", "backend, []", "FLASHINFER_CUTLASS without a class"),
    ],
)
def test_a_weakened_patch_turns_the_proof_red(
    tmp_path: Path, name: str, version: str, old: str, new: str, seen: str
) -> None:
    row = measured(name, version, diff=weakened(name, version, [(old, new)], tmp_path))
    assert row.state == "broken", row.reason
    assert seen in row.reason


@pytest.mark.parametrize(
    ("name", "file", "old", "new", "seen"),
    [
        (
            PREFIX,
            GDN,
            "prefix=prefix,",
            'prefix=f"{prefix}.in_proj_qkvz",',
            "in_proj_qkvz.in_proj_qkvz",
        ),
        (PREFIX, GDN, "prefix=prefix,", 'prefix="",', "is built as"),
        (
            PREFIX,
            GDN,
            'prefix=f"{prefix}.in_proj_ba"',
            'prefix=f"{prefix}.in_proj_b"',
            "in_proj_b,",
        ),
        (
            SCALES,
            "vllm/model_executor/kernels/linear/nvfp4/emulation.py",
            "swizzle=False",
            "swizzle=True",
            "degrees off",
        ),
        (
            EXPERTS,
            "vllm/model_executor/layers/fused_moe/oracle/nvfp4.py",
            "return backend, k_cls",
            "return backend, None",
            "None",
        ),
    ],
)
def test_a_fault_in_a_later_release_would_be_seen(
    name: str, file: str, old: str, new: str, seen: str
) -> None:
    with copy_of(sources.fetch("vllm", "0.22.1", SETTINGS).root) as tree:
        text = (tree / file).read_text()
        assert old in text
        (tree / file).unlink()
        (tree / file).write_text(text.replace(old, new))
        code, said = judged(name, tree)
    assert code == 1, said
    assert seen in said
