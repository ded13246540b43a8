"""Loads the expert tensors of a quantized Gemma 4 checkpoint, by name, with vLLM's loading code.

``Gemma4ForCausalLM.load_weights`` renames what is in a checkpoint, ``Gemma4Model.load_weights``
finds the parameter for each name. Both run with stand-ins for tensors and parameters: once with an
NVFP4 checkpoint, which has a tensor per expert and projection, and scales beside the weights, once
with the original one, which has all experts in one tensor. Every tensor must arrive at its
parameter, with its expert and its shard.
"""

import contextlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import proofkit

MODEL = "vllm/model_executor/models/gemma4.py"
INNER, OUTER = "Gemma4Model", "Gemma4ForCausalLM"
EXPERTS = 2
SHARDS = {"gate_proj": ("w1", "w13"), "up_proj": ("w3", "w13"), "down_proj": ("w2", "w2")}
KINDS = ("weight", "weight_scale", "weight_scale_2", "input_scale")
LAYER = "model.language_model.layers.0"
Arrived = tuple[str, object, object]


class Tensor:
    """A shape."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape

    def dim(self) -> int:
        return len(self.shape)

    def size(self, axis: int) -> int:
        return self.shape[axis]

    def __getitem__(self, at: object) -> "Tensor":
        return Tensor(*self.shape[1:])


Weights = Sequence[tuple[str, Tensor]]


class Parameter:
    """A parameter of the fused layer; remembers what was loaded into it."""

    def __init__(self, name: str, arrived: list[Arrived]) -> None:
        self.name, self.arrived = name, arrived

    def weight_loader(
        self,
        parameter: object,
        tensor: object,
        name: str = "",
        shard_id: object = None,
        expert_id: object = None,
        **_more: object,
    ) -> None:
        # the fused layer knows by the name that it is given what kind of tensor it loads
        known = name.endswith(self.name.partition("_")[2])
        into = self.name if known else f"{self.name} as {name}"
        self.arrived.append((into, shard_id, expert_id))


def table() -> list[tuple[str, str, int, str]]:
    """As the fused layer makes it: parameter, name in the checkpoint, expert, shard."""
    return [
        (f"experts.{fused}_", f"experts.{expert}.{projection}.", expert, shard)
        for expert in range(EXPERTS)
        for projection, (shard, fused) in SHARDS.items()
    ]


def loaders(model: proofkit.Source) -> dict[str, Callable[..., Any]]:
    """The two functions that load, each by the name of its class."""
    functions = []
    for owner in (INNER, OUTER):
        functions.append(proofkit.bare(model.function("load_weights", of=owner)))
        functions[-1].name = owner
    helpers = [name for name in model.definitions if name.startswith("_remap")]
    space = {
        "is_pp_missing_parameter": lambda *_: False,
        "maybe_remap_kv_scale_name": lambda name, _parameters: name,
        "default_weight_loader": lambda *_: None,
        "logger": proofkit.mocked("logger"),
        "WeightsMapper": proofkit.mocked("WeightsMapper"),
        "AutoWeightsLoader": lambda inner, **_: SimpleNamespace(load_weights=inner.hand_on),
        "fused_moe_make_expert_params_mapping": lambda *_, **__: table(),
    }
    tree = model.path.parents[3]
    return model.run([*helpers, *functions], model.in_tree(tree, space))


def load(model: proofkit.Source, weights: Weights, kinds: Iterable[str]) -> list[Arrived]:
    """What arrives where, of ``weights``, in a model whose experts have parameters of ``kinds``."""
    load_weights, arrived = loaders(model), list[Arrived]()
    names = [f"layers.0.moe.experts.{fused}_{kind}" for fused in ("w13", "w2") for kind in kinds]
    parameters = {name: Parameter(name.rpartition(".")[2], arrived) for name in names}
    config = SimpleNamespace(
        num_experts=EXPERTS,
        attention_k_eq_v=False,
        layer_types=["sliding_attention"],
        tie_word_embeddings=True,
    )
    inner = SimpleNamespace(
        config=config,
        quant_config=None,
        named_parameters=parameters.items,
        named_buffers=list,
    )
    inner.hand_on = lambda pairs, **_: load_weights[INNER](
        inner, ((name.removeprefix("model."), weight) for name, weight in pairs)
    )
    load_weights[OUTER](inner, iter(weights))
    return sorted(arrived, key=str)


def symptoms(model: proofkit.Source) -> Iterable[str]:
    """Tensors of either checkpoint that do not arrive."""
    alone = [
        (
            f"{LAYER}.experts.{expert}.{projection}.{kind}",
            Tensor(8, 4) if kind in KINDS[:2] else Tensor(),
        )
        for expert in range(EXPERTS)
        for projection in SHARDS
        for kind in KINDS
    ]
    fused = [
        (f"{LAYER}.experts.gate_up_proj", Tensor(EXPERTS, 8, 4)),
        (f"{LAYER}.experts.down_proj", Tensor(EXPERTS, 4, 4)),
    ]
    for what, weights, kinds in (("NVFP4", alone, KINDS), ("the original", fused, KINDS[:1])):
        wanted = {
            (f"{into}_{kind}", shard, expert)
            for expert in range(EXPERTS)
            for shard, into in SHARDS.values()
            for kind in kinds
        }
        try:
            got = load(model, weights, kinds)
        except (KeyError, AssertionError) as error:
            yield f"{what} checkpoint: {type(error).__name__}: {error}"
            continue
        if got != sorted(wanted, key=str):
            lost = len(wanted - set(got))
            yield f"{what} checkpoint: {lost} of {len(wanted)} tensors do not arrive"
    if "Expected 2D expert weight" in model.text:
        for shape in ((4,), (2, 8, 4)):
            name = f"{LAYER}.experts.0.gate_proj.weight"
            with contextlib.suppress(AssertionError, KeyError):
                load(model, [(name, Tensor(*shape))], KINDS)
                yield f"a weight of {len(shape)} dimensions is taken for an expert's"


def judge(tree: Path) -> proofkit.Verdict:
    """The symptom is an expert tensor that does not arrive at its parameter."""
    model = proofkit.Source(tree / MODEL)
    right = "every expert tensor of both checkpoints arrives at its parameter"
    return proofkit.verdict(symptoms(model), right)


if __name__ == "__main__":
    proofkit.main(judge)
