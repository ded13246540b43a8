"""Loads the expert tensors of a quantized Gemma 4 checkpoint, by name, with vLLM's own loading code.

    python proof.py TREE

``Gemma4ForCausalLM.load_weights`` renames what is in a checkpoint, ``Gemma4Model.load_weights`` finds the parameter for each
name. Both are executed with stand-ins for tensors and parameters: once with an NVFP4 checkpoint, which has a tensor per expert
and projection, and scales beside the weights, once with the original one, which has all experts in one tensor. Every tensor
must arrive at its parameter, with its expert and its shard.
"""

import ast
import pathlib
import re
import sys
import types
from unittest import mock

MODEL = pathlib.Path(sys.argv[1], "vllm/model_executor/models/gemma4.py")
EXPERTS, SHARDS = 2, {"gate_proj": ("w1", "w13"), "up_proj": ("w3", "w13"), "down_proj": ("w2", "w2")}
KINDS = ("weight", "weight_scale", "weight_scale_2", "input_scale")
LAYER = "model.language_model.layers.0"


class Unknown(Exception):
    """The sources are not laid out in any way that this proof knows."""


class Tensor:
    """A shape."""

    def __init__(self, *shape):
        self.shape = shape

    def dim(self):
        return len(self.shape)

    def size(self, axis):
        return self.shape[axis]

    def __getitem__(self, at):
        return Tensor(*self.shape[1:])


class Parameter:
    """A parameter of the fused layer; remembers what was loaded into it."""

    def __init__(self, name, arrived):
        self.name, self.arrived = name, arrived

    def weight_loader(self, _parameter, _tensor, name="", shard_id=None, expert_id=None, **_more):
        # the fused layer tells by the name that it is given what kind of tensor it loads
        told = name.endswith(self.name.partition("_")[2])
        self.arrived.append((self.name if told else f"{self.name} as {name}", shard_id, expert_id))


def functions():
    """The two functions that load, and what they use, with stand-ins for the rest."""
    tree = ast.parse(MODEL.read_text())
    methods = {}
    helpers = []
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name in ("Gemma4Model", "Gemma4ForCausalLM"):
            methods |= {node.name: n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "load_weights"}
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("_remap"):
            helpers.append(node)
    if len(methods) != 2:
        raise Unknown("load_weights is not where it was")
    for name, node in methods.items():
        node.name = name
    module = ast.Module([ast.ImportFrom("__future__", [ast.alias("annotations")], 0), *helpers, *methods.values()], [])
    space = {
        "re": re,
        "is_pp_missing_parameter": lambda *_: False,
        "maybe_remap_kv_scale_name": lambda name, _parameters: name,
        "default_weight_loader": lambda *_: None,
        "logger": mock.MagicMock(),
        "WeightsMapper": mock.MagicMock(),
        "AutoWeightsLoader": lambda inner, **_: types.SimpleNamespace(load_weights=inner.hand_on),
        # a table of the shape that the fused layer makes: (parameter, name in the checkpoint, expert, shard)
        "fused_moe_make_expert_params_mapping": lambda *_, **__: table(),
    }
    exec(compile(ast.fix_missing_locations(module), "vllm", "exec"), space)
    return space


def table():
    return [
        (f"experts.{fused}_", f"experts.{expert}.{projection}.", expert, shard)
        for expert in range(EXPERTS)
        for projection, (shard, fused) in SHARDS.items()
    ]


def load(weights, kinds):
    """What arrives where, of ``weights``, in a model whose experts have parameters of ``kinds``."""
    space, arrived = functions(), []
    names = [f"layers.0.moe.experts.{fused}_{kind}" for fused in ("w13", "w2") for kind in kinds]
    parameters = {name: Parameter(name.rpartition(".")[2], arrived) for name in names}
    config = types.SimpleNamespace(
        num_experts=EXPERTS, attention_k_eq_v=False, layer_types=["sliding_attention"], tie_word_embeddings=True
    )
    inner = types.SimpleNamespace(
        config=config,
        quant_config=None,
        named_parameters=parameters.items,
        named_buffers=lambda: [],
    )
    inner.hand_on = lambda pairs, **_: space["Gemma4Model"](inner, ((n.removeprefix("model."), w) for n, w in pairs))
    space["Gemma4ForCausalLM"](inner, iter(weights))
    return sorted(arrived, key=str)


def main():
    """Exit 0 or 1, with one sentence."""
    alone = [
        (f"{LAYER}.experts.{expert}.{projection}.{kind}", Tensor(8, 4) if kind in KINDS[:2] else Tensor())
        for expert in range(EXPERTS)
        for projection in SHARDS
        for kind in KINDS
    ]
    fused = [(f"{LAYER}.experts.gate_up_proj", Tensor(EXPERTS, 8, 4)), (f"{LAYER}.experts.down_proj", Tensor(EXPERTS, 4, 4))]
    wrong = []
    for what, weights, kinds in (("NVFP4", alone, KINDS), ("the original", fused, KINDS[:1])):
        wanted = sorted(
            ((f"{into}_{kind}", shard, expert) for expert in range(EXPERTS) for shard, into in SHARDS.values() for kind in kinds),
            key=str,
        )
        try:
            got = load(weights, kinds)
        except (KeyError, AssertionError) as error:
            wrong.append(f"{what} checkpoint: {type(error).__name__}: {error}")
            continue
        if got != wanted:
            wrong.append(f"{what} checkpoint: {len(set(wanted) - set(got))} of {len(wanted)} tensors do not arrive")
    print("; ".join(wrong) or "every expert tensor of both checkpoints arrives at its parameter")
    return 1 if wrong else 0


try:
    code = main()
except Exception as reason:  # an unknown layout may fail in any way; what Python makes of that is exit 1, a symptom
    print(f"cannot be told: {reason!r}")
    code = 3
sys.exit(code)
