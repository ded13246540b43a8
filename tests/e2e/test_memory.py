"""Plans of the KV cache beside what the vLLM of an image answers now."""

from __future__ import annotations

import json

import memory_table
import pytest

from imagefactory.system.engine import Engine

pytestmark = pytest.mark.e2e

#: One of each architecture.
MODELS = (
    *("Qwen3-0.6B", "gpt-oss-120b", "DeepSeek-V2-Lite", "gemma-3-27b-it"),
    *("Qwen3.6-35B-A3B", "NVIDIA-Nemotron-3-Nano-30B-A3B"),
)


def test_plans_are_within_3_percent_of_the_blocks_of_an_images_vllm(
    engine: Engine, cpu_image: str
) -> None:
    cases = {case["model"]: case for case in reversed(json.loads(memory_table.CASES.read_text()))}
    asked = json.dumps([cases[model] for model in MODELS])
    record = memory_table.ask(engine, cpu_image, asked)
    assert [case["model"] for case in record["cases"]] == list(MODELS)
    for case in record["cases"]:
        pool = memory_table.planned(case)
        assert pool.blocks(case["memory"]) == pytest.approx(case["blocks"], rel=0.03), case
        assert pool.tokens(case["memory"]) == pytest.approx(case["tokens"], rel=0.03), case
