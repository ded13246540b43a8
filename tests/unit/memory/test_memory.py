"""Plans of memory: weights, nodes, what fits, and what is wrong with a configuration."""

from __future__ import annotations

import random
from typing import Any

import pytest
from support.memory import MODELS, model, raw

from imagefactory.errors import InputError
from imagefactory.memory import machine, memory, picture
from imagefactory.memory.kv_cache import stages
from imagefactory.memory.machine import GIB
from imagefactory.memory.memory import Request, plan

NVFP4 = {
    "quant_method": "modelopt",
    "quant_algo": "NVFP4",
    "kv_cache_quant_algo": "FP8",
    "ignore": ["lm_head", "*linear_attn*", "*self_attn*", "*shared_expert*", "model.visual*"],
}
WEIGHTS = {"num_bits": 4, "type": "float", "group_size": 16}
COMPRESSED = {
    "quant_method": "compressed-tensors",
    "config_groups": {"group_0": {"weights": WEIGHTS, "targets": ["Linear"]}},
    "ignore": ["lm_head", "re:.*self_attn.*"],
}
#: quantization_config of Qwen3-0.6B -> bytes of its weights in relation to those in bfloat16.
QUANTIZED = (
    ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 0.63),
    ({"quant_method": "awq", "bits": 4, "group_size": 128}, 0.45),
    ({"quant_method": "gptq", "bits": 4, "group_size": -1}, 0.44),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 0.47),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["*mlp*"]}, 0.79),
    (COMPRESSED, 0.68),
    (
        {
            "quant_method": "modelopt",
            "quant_algo": "MIXED_PRECISION",
            "quantized_layers": {
                f"model.layers.{at}.mlp.gate_up_proj": {"quant_algo": "NVFP4"} for at in range(28)
            },
        },
        0.68,
    ),
)


def size(**changes: Any) -> float:
    return sum(part.bytes for part in model("Qwen3-0.6B", **changes).parts)


@pytest.mark.parametrize(("config", "share"), QUANTIZED)
def test_weights_have_the_size_of_their_quantization(config: dict[str, Any], share: float) -> None:
    assert size(quantization_config=config) / size() == pytest.approx(share, abs=0.006)


def test_weights_of_a_server_on_a_spark() -> None:
    """Qwen3.6-35B-A3B in NVFP4, with its head for drafts: "took 21.94 GiB memory"."""
    found = model("Qwen3.6-35B-A3B", quantization_config=NVFP4)
    request = Request(context=65536, speculative=3)
    planned = plan(found, request)
    assert planned.weights / GIB == pytest.approx(21.94, rel=0.06)
    assert (planned.cache_dtype, found.quantization) == ("fp8", "NVFP4")
    # at 0.85, vLLM had 76.49 GiB for its cache
    fixed = planned.weights + sum(one.bytes for one in planned.runtime)
    assert 0.85 * machine.TOTAL - fixed / GIB == pytest.approx(76.49, rel=0.03)


def test_weights_of_gpt_oss_are_those_of_its_files() -> None:
    found = sum(part.bytes for part in model("gpt-oss-120b").parts)
    assert found == pytest.approx(65.25e9, rel=0.01)  # total_size of its index


def test_a_known_size_of_the_weights_replaces_what_is_computed() -> None:
    config = {"quant_method": "something-new"}
    with pytest.raises(InputError, match="something-new"):
        model("Qwen3-0.6B", quantization_config=config)
    values = raw("Qwen3-0.6B", quantization_config=config)
    found = memory.read(values, "Qwen3-0.6B", "config.json", size=GIB)
    planned = plan(found, Request(), GIB)
    assert (planned.weights, planned.measured) == (GIB, True)


def test_the_ceiling_is_what_was_found_on_four_nodes() -> None:
    """108 GiB were stable, 110 were not: the first long prompt ended the server."""
    ceiling = plan(model("Qwen3-0.6B"), Request()).ceiling
    assert 108 * GIB <= ceiling < 110 * GIB


def test_a_plan_has_settings_that_hold_its_sequences() -> None:
    planned = plan(model("gpt-oss-120b"), Request(context=65536, seqs=8, cache_dtype="fp8"))
    assert planned.fits
    settings = planned.settings()
    assert settings["--kv-cache-dtype"] == "fp8"
    assert settings["--max-model-len"] == "65536"
    utilization = float(settings["--gpu-memory-utilization"])
    assert planned.budget <= utilization * planned.request.total <= planned.ceiling
    assert planned.budget <= planned.budget_gib * GIB <= planned.budget + GIB / 2
    concurrency = planned.pool.blocks(planned.cache) / planned.pool.per_request(65536)
    assert 8 <= concurrency < 12
    assert planned.most_seqs[65536] >= 8


def test_what_does_not_fit_fits_on_more_nodes() -> None:
    found = model("Qwen3-Next-80B-A3B-Instruct")
    planned = plan(found, Request(context=32768))
    assert (planned.fits, planned.longest) == (False, 0)
    assert memory.fewest_nodes(planned) == 2
    two = plan(found, Request(context=32768, nodes=2))
    assert (two.fits, two.tensor, two.pipeline) == (True, 2, 1)
    assert two.weights == pytest.approx(planned.weights / 2, rel=0.01)
    assert two.settings()["--tensor-parallel-size"] == "2"


def test_less_context_fits_where_all_of_it_does_not() -> None:
    planned = plan(model("gemma-3-27b-it"), Request(seqs=64))
    assert not planned.fits
    shorter = plan(model("gemma-3-27b-it"), Request(seqs=64, context=planned.longest))
    assert shorter.fits
    longer = plan(model("gemma-3-27b-it"), Request(seqs=64, context=planned.longest + 64))
    assert not longer.fits


def test_three_nodes_divide_layers_where_heads_are_not_divisible() -> None:
    found = model("gpt-oss-120b")
    planned = plan(found, Request(nodes=3, context=8192))
    assert (planned.tensor, planned.pipeline) == (1, 3)
    one = plan(found, Request(context=8192))
    assert one.weights / 3 < planned.weights < one.weights / 3 * 1.1
    assert planned.pool.block_bytes == one.pool.block_bytes / 3
    with pytest.raises(InputError, match="3 nodes cannot divide the 64 heads"):
        plan(found, Request(nodes=3, pipeline=False))


def test_nodes_divide_layers_as_vllm_does() -> None:
    found = [[at for at in node if 0 <= at < 62] for node in stages(62, 4)]
    assert [len(node) for node in found] == [15, 16, 16, 15]
    assert [at for node in found for at in node] == list(range(62))


def test_heads_are_divided_and_latent_attention_is_repeated() -> None:
    for name, share in (("Qwen3-0.6B", 2), ("DeepSeek-V2-Lite", 1)):
        one, two = (plan(model(name), Request(nodes=nodes)).pool.block_bytes for nodes in (1, 2))
        assert one / two == share, name


def test_a_quantized_cache_takes_less() -> None:
    found = {
        dtype: plan(model("Qwen3-0.6B"), Request(cache_dtype=dtype)).pool.block_bytes / 28 / 16 / 8
        for dtype in ("auto", "fp8", "nvfp4", "int8_per_token_head")
    }
    assert found == {"auto": 512, "fp8": 256, "nvfp4": 144, "int8_per_token_head": 264}


#: Changes of a configuration -> what the error says.
WRONG: tuple[tuple[dict[str, Any], str], ...] = (
    ({"hidden_size": None}, "hidden_size is missing"),
    ({"hidden_size": "1024"}, "hidden_size is not a whole number: '1024'"),
    ({"hidden_size": True}, "hidden_size is not a whole number: True"),
    ({"num_hidden_layers": 0}, "num_hidden_layers is 0, not 1 to"),
    ({"num_hidden_layers": 1 << 29}, "num_hidden_layers is 536870912, not 1 to 10000"),
    ({"num_key_value_heads": -8}, "num_key_value_heads is -8"),
    ({"vocab_size": 1 << 40}, "vocab_size is 1099511627776"),
    ({"torch_dtype": "float7"}, "dtype is 'float7', not one of"),
    ({"tie_word_embeddings": "yes"}, "neither true nor false: 'yes'"),
    ({"layer_types": ["full_attention"]}, "layer_types is not a list with an entry for each"),
    ({"layer_types": ["rwkv"] * 28}, "layer_types has 'rwkv'"),
    ({"hybrid_override_pattern": "M?"}, "has not one of M*E- for each layer"),
    ({"hybrid_override_pattern": "E" * 28}, "no layer keeps a KV cache"),
    ({"is_encoder_decoder": True}, "an encoder and a decoder"),
    ({"linear_attn_config": {}}, "linear_attn_config: this version cannot plan"),
    ({"num_attention_heads": None}, "num_attention_heads is missing"),
    ({"kv_lora_rank": 512}, "qk_rope_head_dim is missing"),
    ({"quantization_config": []}, "the method None"),
    ({"quantization_config": {"quant_method": "awq"}}, "the method 'awq'"),
)


@pytest.mark.parametrize(("changes", "text"), WRONG)
def test_a_wrong_configuration_is_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=r"config\.json") as raised:
        model("Qwen3-0.6B", **changes)
    assert text in str(raised.value)


def test_all_problems_are_named_at_once() -> None:
    with pytest.raises(InputError) as raised:
        memory.read({}, "nothing", "config.json")
    names = {problem.what.split()[0] for problem in raised.value.problems}
    assert {"num_hidden_layers", "hidden_size", "vocab_size"} <= names
    with pytest.raises(InputError) as raised:
        model("Qwen3-0.6B", hidden_size=-1, vocab_size="x", num_key_value_heads=0)
    assert len(raised.value.problems) == 3


def outcome(broken: dict[str, Any]) -> str:
    try:
        plan(memory.read(broken, "damaged", "config.json"), Request(nodes=3))
    except InputError:
        return "refused"
    return "planned"


def test_a_damaged_configuration_is_planned_or_refused() -> None:
    dice = random.Random(0)  # noqa: S311 - the same in every run
    found = set()
    values: tuple[Any, ...] = (None, 0, -1, 3, "x", [], {}, True, 1 << 50, 2.5, [None], {"a": 1})
    for folder in sorted(MODELS.iterdir()):
        for _ in range(4):
            broken = raw(folder.name)
            inner = broken.get("text_config", broken)
            for key in dice.sample(sorted(inner), 3):
                inner[key] = dice.choice(values)
            found.add(outcome(broken))
    assert found == {"planned", "refused"}


def test_a_request_that_vllm_would_refuse_is_refused_with_all_reasons() -> None:
    request = Request(context=1 << 20, cache_dtype="fp9", speculative=1, nodes=64, vllm="new")
    with pytest.raises(InputError) as raised:
        plan(model("Qwen3-0.6B"), request)
    codes = {problem.code.removeprefix("memory-") for problem in raised.value.problems}
    assert codes == {"context", "cache-dtype", "speculative", "nodes", "vllm"}


def test_the_bar_fills_its_width_and_overflows_with_what_is_too_much() -> None:
    planned = plan(model("gpt-oss-120b"), Request(context=65536))
    shown = picture.bar(planned, 60)
    assert sum(columns for _, columns in shown) == 60
    assert sum(one.bytes for one, _ in shown) == planned.request.total
    assert all(columns for one, columns in shown)
    too_much = plan(model("Qwen3-Next-80B-A3B-Instruct"), Request())
    assert sum(columns for _, columns in picture.bar(too_much, 60)) > 60
