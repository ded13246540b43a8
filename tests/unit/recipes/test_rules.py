"""Each rule about serving on a GB10 finds what it is for, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from imagefactory.recipes import recipes, rules
from imagefactory.recipes.recipe import Recipe

Keys = dict[str, object]
DFLASH: Keys = {"method": "dflash", "model": "org/drafter", "num_speculative_tokens": 15}
ON_GB10: Keys = {"attention-backend": "TRITON_ATTN", "speculative-config": DFLASH}
NVFP4: Keys = {"weights": "nvfp4-modelopt", "experts": True}
MODELOPT: Keys = {"quantization": "modelopt"}
LONG: Keys = {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}


def recipe_of(folder: Path, options: Keys, **keys: object) -> Recipe:
    more = {"gpu-memory-utilization": "0.85"} if "memory" not in keys else {}
    keys.pop("memory", None)
    file = {
        "summary": "s",
        "model": "o/m",
        "weights": "bf16",
        "vllm": ">=0.16",
        "weights_gib": "20",
        "context": 65536,
        "options": {**more, **options},
        **keys,
    }
    path = folder / "x.yaml"
    path.write_text(json.dumps({key: one for key, one in file.items() if one is not None}))
    return recipes.read(path)


GOOD: list[tuple[Keys, Keys]] = [
    ({}, {}),
    ({**MODELOPT, "moe-backend": "marlin"}, NVFP4),
    ({}, {"weights": "nvfp4-compressed-tensors"}),
    ({"gpu-memory-utilization": "0.21"}, {}),
    ({"gpu-memory-utilization-gb": 108}, {"memory": None}),
    ({"max-model-len": 65536}, {}),
    ({"max-model-len": 65536}, {"context": None}),
    ({"max-model-len": 99999, "hf-overrides": '{"rope_parameters":{}}'}, {"env": LONG}),
    ({"tool-call-parser": "hermes", "enable-auto-tool-choice": True}, {}),
    ({"speculative-config": {"method": "mtp", "num_speculative_tokens": 3}}, {}),
    ({"speculative-config": {"method": "mtp", "model": "m"}, "kv-cache-dtype": "fp8"}, {}),
    (ON_GB10, {"env": {"VLLM_USE_DEEP_GEMM": "0"}}),
    ({"tensor-parallel-size": 2}, {"nodes": [2]}),
    ({"moe-backend": "cutlass", **MODELOPT}, {**NVFP4, "accepts": [
        {"rule": "nvfp4-experts", "reason": "measured"}
    ]}),
]  # fmt: skip
BAD: list[tuple[str, str, Keys, Keys]] = [
    ("quantization", "not set", {}, {"weights": "nvfp4-modelopt"}),
    ("quantization", "is fp8", {"quantization": "fp8"}, {"weights": "nvfp4-modelopt"}),
    ("quantization", "by itself", MODELOPT, {"weights": "nvfp4-compressed-tensors"}),
    ("nvfp4-experts", "not set", MODELOPT, NVFP4),
    ("nvfp4-experts", "is triton", {**MODELOPT, "moe-backend": "triton"}, NVFP4),
    ("memory", "no memory is reserved", {}, {"memory": None}),
    ("memory", "no server started", {"gpu-memory-utilization": "0.15"}, {}),
    ("memory", "no number", {"gpu-memory-utilization": "much"}, {}),
    ("memory", "runtime need 35", {"gpu-memory-utilization": "0.25"}, {"weights_gib": "30"}),
    ("memory", "110 to give", {"gpu-memory-utilization-gb": 111}, {}),
    ("memory", "110 to give", {"gpu-memory-utilization": "0.95"}, {}),
    ("context", "65536 positions", {"max-model-len": 65537}, {}),
    ("context", "NaN", {}, {"env": LONG}),
    ("tool-parser", "HTTP 400", {"tool-call-parser": "hermes"}, {}),
    ("tool-parser", "does not start", {"enable-auto-tool-choice": True}, {}),
    ("mtp", "5 tokens", {"speculative-config": {"method": "x_mtp", "num_speculative_tokens": 5}}, {}),
    ("mtp", "in nvfp4", {"speculative-config": {"method": "mtp", "model": "m"},
                         "kv-cache-dtype": "nvfp4"}, {}),
    ("dflash", "cache in fp8", {**ON_GB10, "kv-cache-dtype": "fp8"},
     {"env": {"VLLM_USE_DEEP_GEMM": "0"}}),
    ("dflash", "triton_attn", {"speculative-config": DFLASH},
     {"env": {"VLLM_USE_DEEP_GEMM": "0"}}),
    ("dflash", "DeepGEMM", ON_GB10, {}),
    ("nodes", "1 GPUs of 2 nodes", {}, {"nodes": [2]}),
    ("nodes", "2 GPUs of 1 nodes", {"pipeline-parallel-size": 2}, {}),
]  # fmt: skip


@pytest.mark.parametrize(("options", "keys"), GOOD)
def test_what_keeps_the_rules_is_no_problem(tmp_path: Path, options: Keys, keys: Keys) -> None:
    recipe = recipe_of(tmp_path, options, **keys)
    assert list(rules.broken(recipe.on("0.33.0", recipe.nodes[0]), hardware="gb10")) == []


@pytest.mark.parametrize(("rule", "what", "options", "keys"), BAD)
def test_what_breaks_a_rule_is_found(
    tmp_path: Path, rule: str, what: str, options: Keys, keys: Keys
) -> None:
    recipe = recipe_of(tmp_path, options, **keys)
    setup = recipe.on("0.33.0", recipe.nodes[0])
    (problem,) = rules.broken(setup, hardware="gb10")
    assert problem.code == f"recipe-{rule}"
    assert what in problem.what
    assert problem.fix
    assert (problem.where or "").startswith(recipe.shown)
    on_cpu = list(rules.broken(setup, hardware="cpu"))
    assert bool(on_cpu) == (rule in rules.ANYWHERE)


def test_every_rule_is_seen_to_fail() -> None:
    assert {rule for rule, *_ in BAD} == set(rules.RULES)


def test_releases_without_the_option_choose_marlin_by_a_variable(tmp_path: Path) -> None:
    variable = {"VLLM_USE_FLASHINFER_MOE_FP4": "0"}
    for env, count in (({}, 1), (variable, 0)):
        recipe = recipe_of(tmp_path, dict(MODELOPT), env=env, **NVFP4)
        assert len(list(rules.broken(recipe.on("0.16.0", 1), hardware="gb10"))) == count
