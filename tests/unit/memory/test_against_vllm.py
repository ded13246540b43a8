"""Plans of the KV cache beside what vLLM itself and servers on Sparks reported."""

from __future__ import annotations

import json
from typing import Any

import pytest
from memory_table import RECORD, page, planned
from support import ROOT
from support.memory import model

from imagefactory.memory.machine import GIB
from imagefactory.memory.memory import Request, plan

ANSWERS = json.loads(RECORD.read_text())
CASES: list[dict[str, Any]] = ANSWERS["cases"]
#: Of published figures, which are rounded.
NEAR = 0.03


def case_name(case: dict[str, Any]) -> str:
    return "-".join(str(case[key]) for key in case if key not in ("groups", "memory", "parameters"))


@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_blocks_are_those_that_vllm_itself_plans(case: dict[str, Any]) -> None:
    pool = planned(case)
    assert pool.blocks(case["memory"]) == case["blocks"]
    assert pool.tokens(case["memory"]) == case["tokens"]
    assert sorted(len(g.layers) for g in pool.groups) == sorted(n for _, n in case["groups"])


def test_the_record_has_eight_models_of_six_architectures() -> None:
    assert len({case["model"] for case in CASES}) >= 8
    kinds = {kind for case in CASES for kind, _ in case["groups"]}
    assert kinds == {"FullAttentionSpec", "SlidingWindowSpec", "MLAAttentionSpec", "MambaSpec"}


#: A model -> what of it, changed a little, changes its blocks or tokens.
NOTICED = (
    ("Qwen3-0.6B", {"num_key_value_heads": 7}),
    ("gpt-oss-120b", {"sliding_window": 256}),
    ("DeepSeek-V2-Lite", {"qk_rope_head_dim": 65}),
    ("NVIDIA-Nemotron-3-Nano-30B-A3B", {"mamba_ssm_cache_dtype": "bfloat16"}),
    ("falcon-mamba-7b", {"conv_kernel": 5}),
)


@pytest.mark.parametrize(("name", "changes"), NOTICED)
def test_a_small_difference_is_noticed(name: str, changes: dict[str, Any]) -> None:
    case = next(case for case in CASES if case["model"] == name)
    pool, memory = planned(case, **changes), case["memory"]
    assert (pool.blocks(memory), pool.tokens(memory)) != (case["blocks"], case["tokens"])


def test_the_page_is_made_from_the_record() -> None:
    assert (ROOT / "docs/memory-table.md").read_text() == page(ANSWERS)


PARAMETERS = {case["model"]: case["parameters"] for case in CASES if case["parameters"]}


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_those_of_vllm(name: str) -> None:
    parts = [part for part in model(name).parts if not part.draft and part.module != "visual"]
    assert sum(part.elements for part in parts) == pytest.approx(PARAMETERS[name], rel=0.002)


def test_the_cache_of_a_server_with_drafts_on_a_spark() -> None:
    """Qwen3.6-35B-A3B in NVFP4: "Available KV cache memory: 76.49 GiB", "4,843,965 tokens",
    "73.91x" for 65,536 tokens, with three tokens of a draft and an FP8 cache (vLLM 0.23)."""
    request = Request(context=65536, cache_dtype="fp8", speculative=3, vllm="0.23.0")
    found = plan(model("Qwen3.6-35B-A3B"), request).pool
    memory = int(76.49 * GIB)
    assert found.tokens(memory) == 4_843_965
    assert round(found.tokens(memory) / 65536, 2) == 73.91
    assert round(memory / found.tokens(memory) / 1024, 1) == 16.6


#: GiB of the cache, and tokens that a server reported, rounded as it was published (vLLM 0.18).
NEMOTRON = ((4.2, 292e3), (3.3, 225e3), (15.9, 1.1e6), (89.4, 6.2e6))


@pytest.mark.parametrize(("gib", "tokens"), NEMOTRON)
def test_the_cache_of_nemotron_on_a_spark(gib: float, tokens: float) -> None:
    request = Request(context=8192, seqs=1, cache_dtype="fp8", vllm="0.18.1")
    name = "NVIDIA-Nemotron-3-Nano-30B-A3B"
    assert plan(model(name), request).pool.tokens(int(gib * GIB)) == pytest.approx(tokens, rel=NEAR)
