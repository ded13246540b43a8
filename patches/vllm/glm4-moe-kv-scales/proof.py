"""Loads a GLM-4 MoE checkpoint with KV-cache scales, by name, with vLLM's loading code.

``Glm4MoeModel.load_weights`` finds the parameter for each name of a checkpoint. It runs with
stand-ins for tensors, parameters and modules, and with the tree's own renaming of KV-cache scales.
A checkpoint has these scales beside the projections of keys and values. vLLM has them in the
attention layer if the checkpoint says that the KV cache is quantized, else nowhere. In the first
case they must arrive there, in the second be left out. Every other tensor must arrive at its
parameter with its shard and its expert, whether there are scales or not.
"""

import sys
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import proofkit

MODEL = "vllm/model_executor/models/glm4_moe.py"
CONFIG = "vllm/model_executor/layers/quantization/base_config.py"
CLASS = "Glm4MoeModel"
LAYERS, EXPERTS = 2, 2
ATTENTION = {"q_proj": "q", "k_proj": "k", "v_proj": "v"}
DENSE = {"gate_proj": 0, "up_proj": 1}
SHARDS = {"gate_proj": ("w1", "w13"), "up_proj": ("w3", "w13"), "down_proj": ("w2", "w2")}
SCALES = ("k", "v")
#: A parameter, the shard and the expert that were loaded into it, and which tensor that was.
Arrived = tuple[str, object, object, str]


class Tensor:
    """A tensor, by its name in the checkpoint. Newer loaders write its shard on it."""

    ndim, shape, dtype = 1, (1,), "bfloat16"

    def __init__(self, name: str) -> None:
        self.name, self.shard_id = name, None


class Parameter:
    """A parameter without a loader of its own; remembers what was loaded into it."""

    shape, dtype = (1,), "bfloat16"

    def __init__(self, name: str, arrived: list[Arrived]) -> None:
        self.name, self.arrived = name, arrived


class Sharded(Parameter):
    """A parameter that is loaded shard by shard, or expert by expert."""

    def weight_loader(
        self, _parameter: object, tensor: Tensor, *given: object, **named: object
    ) -> bool:
        # the fused experts are given the parameter's name as well, other layers their shard only
        shard = named.get("shard_id", given[0] if given else tensor.shard_id)
        self.arrived.append((self.name, shard, named.get("expert_id"), tensor.name))
        return True


def default_loader(parameter: Parameter, tensor: Tensor) -> None:
    parameter.arrived.append((parameter.name, None, None, tensor.name))


def table(*_: object, **__: object) -> list[tuple[str, str, int, str]]:
    """As the fused layer makes it: parameter, name in the checkpoint, expert, shard."""
    return [
        (f"experts.{fused}_", f"experts.{expert}.{projection}.", expert, shard)
        for expert in range(EXPERTS)
        for projection, (shard, fused) in SHARDS.items()
    ]


class Module:
    """A module with its parameters by name; a name that ends with a dot is an empty module."""

    def __init__(self, parameters: dict[str, Parameter]) -> None:
        self.parameters = parameters

    def named_children(self) -> Iterator[tuple[str, "Module"]]:
        for child in dict.fromkeys(n.partition(".")[0] for n in self.parameters if "." in n):
            start = f"{child}."
            inside = {n[len(start) :]: p for n, p in self.parameters.items() if n.startswith(start)}
            inside.pop("", None)
            yield child, Experts(inside) if child == "experts" else Module(inside)

    def children(self) -> Iterator["Module"]:
        return (child for _, child in self.named_children())

    def named_modules(self, **_: object) -> Iterator[tuple[str, "Module"]]:
        yield "", self
        for name, child in self.named_children():
            yield from ((f"{name}.{rest}".rstrip("."), one) for rest, one in child.named_modules())

    def named_parameters(self, *, recurse: bool = True) -> Iterator[tuple[str, Parameter]]:
        found = ((n, p) for n, p in self.parameters.items() if not n.endswith("."))
        return (pair for pair in found if recurse or "." not in pair[0])

    def named_buffers(self, **_: object) -> Iterator[tuple[str, Parameter]]:
        return iter(())

    def _get_name(self) -> str:
        return CLASS


class Experts(Module):
    """The fused experts, which newer loaders leave to load themselves."""

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[str]:
        for name, tensor in weights:
            for into, part, expert, shard in table():
                if f"experts.{name}".startswith(part):
                    own = f"experts.{name}".replace(part, into).removeprefix("experts.")
                    parameter: Any = self.parameters[own]
                    parameter.weight_loader(parameter, tensor, shard_id=shard, expert_id=expert)
                    yield own


class Torch:
    """torch.nn: classes, each of its own."""

    def __getattr__(self, name: str) -> type:
        return types.new_class(name)


def known() -> dict[str, object]:
    """Stand-ins by upstream's names."""
    rocm = SimpleNamespace(is_fusion_moe_shared_experts_enabled=lambda: False)
    return {
        "nn": Torch(),
        "is_pp_missing_parameter": lambda *_: False,
        "default_weight_loader": default_loader,
        "fused_moe_make_expert_params_mapping": table,
        "SharedFusedMoE": SimpleNamespace(make_expert_params_mapping=table),
        "rocm_aiter_ops": rocm,
        "VocabParallelEmbedding": types.new_class("VocabParallelEmbedding"),
        "maybe_fuse_shared_experts": lambda weights, **_: weights,
    }


def checkpoint(*, scales: bool) -> Iterator[tuple[str, str, object, object]]:
    """Name in the checkpoint, parameter, shard and expert of every tensor, but for the scales."""
    yield "embed_tokens.weight", "embed_tokens.weight", None, None
    for layer in range(LAYERS):
        start = f"layers.{layer}"
        for projection, shard in ATTENTION.items():
            for kind in ("weight", "bias", "weight_scale", "input_scale"):
                name = f"{start}.self_attn.{projection}.{kind}"
                yield name, f"{start}.self_attn.qkv_proj.{kind}", shard, None
            if scales and shard in SCALES:
                scale = f"{shard}_scale"
                name = f"{start}.self_attn.{projection}.{scale}"
                yield name, f"{start}.self_attn.attn.{scale}", None, None
        yield f"{start}.self_attn.o_proj.weight", f"{start}.self_attn.o_proj.weight", None, None
        dense = "mlp" if layer == 0 else "mlp.shared_experts"
        for projection, number in DENSE.items():
            name = f"{start}.{dense}.{projection}.weight"
            yield name, f"{start}.{dense}.gate_up_proj.weight", number, None
    name = f"layers.{LAYERS - 1}.mlp.gate.e_score_correction_bias"
    yield name, name, None, None
    for into, part, expert, shard in table():
        for kind in ("weight", "weight_scale"):
            start = f"layers.{LAYERS - 1}.mlp"
            yield f"{start}.{part}{kind}", f"{start}.{into}{kind}", shard, expert


def loader(tree: Path) -> Any:
    """The class, with nothing but what loads its weights."""
    model = proofkit.Source(tree / MODEL)
    space = model.in_tree(tree, known())
    found = proofkit.bare(model.cls(CLASS), ["load_weights"])
    return model.run([found], space)[CLASS]


def load(tree: Path, names: Iterable[str], parameters: dict[str, Parameter]) -> set[str]:
    """Load tensors of these ``names``; which parameters upstream says that it has loaded."""

    class Model(Module, loader(tree)):  # type: ignore[misc]  # made from upstream's source
        config = SimpleNamespace(
            num_hidden_layers=LAYERS,
            num_nextn_predict_layers=1,
            n_routed_experts=EXPERTS,
            n_shared_experts=1,
            model_type="glm4_moe",
        )
        is_fused_shared_expert_enabled = False

    model = Model(parameters)
    config = proofkit.Source(tree / CONFIG)
    if "get_cache_scale_mapper" in config.text:  # since 0.26 the loader asks it for the names
        model.quant_config = config.in_tree(tree, known())["QuantizationConfig"]
    spec = f"layers.{LAYERS}.self_attn.k_proj.k_scale"  # of the MTP head: another model loads it
    return set(model.load_weights((name, Tensor(name)) for name in [*names, spec]))


def symptoms_of(tree: Path, *, scales: bool, quantized: bool) -> Iterator[str]:
    """What does not arrive in a model whose attention has parameters for the scales, or has not."""
    rows = list(checkpoint(scales=scales))
    arrived: list[Arrived] = []
    plain = [into for _, into, shard, _ in rows if shard is None and not into.endswith("_scale")]
    wanted = {(into, shard, expert, name) for name, into, shard, expert in rows}
    if not quantized:
        wanted = {one for one in wanted if not one[0].endswith((".k_scale", ".v_scale"))}
    own = [f"layers.{n}.self_attn.attn.{one}_scale" for n in range(LAYERS) for one in SCALES]
    fused = [into for _, into, _, _ in rows if into not in (*plain, *own)]
    parameters: dict[str, Parameter] = {into: Sharded(into, arrived) for into in fused}
    parameters |= {into: Parameter(into, arrived) for into in [*plain, *(own if quantized else [])]}
    empty: Any = {f"layers.{n}.self_attn.attn.": None for n in range(LAYERS)}
    what = "quantized" if quantized else "no"
    case = f"{'with' if scales else 'without'} scales, {what} KV cache"
    try:
        said = load(tree, [name for name, _, _, _ in rows], parameters | empty)
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, TypeError) and "NoneType" not in str(error):
            raise  # a stand-in that is not enough
        yield f"{case}: {type(error).__name__}: {error}"
        return
    if lost := sorted(wanted - set(arrived), key=str):
        yield f"{case}: {len(lost)} tensors do not arrive, such as {lost[0][3]}"
    if more := sorted(set(arrived) - wanted, key=str):
        yield f"{case}: {more[0][3]} is loaded into {more[0][0]}"
    if len(arrived) > len(set(arrived)):
        yield f"{case}: tensors are loaded twice"
    if silent := {into for into, _, _, _ in arrived} - said:
        yield f"{case}: {min(silent)} is loaded and not reported"


def judge(tree: Path) -> proofkit.Verdict:
    """The symptom is a tensor that is not where it should be."""
    sys.modules.setdefault("tree", types.ModuleType("tree"))  # dataclasses look their module up
    found = [
        symptom
        for scales, quantized in ((True, True), (True, False), (False, True), (False, False))
        for symptom in symptoms_of(tree, scales=scales, quantized=quantized)
    ]
    right = "KV-cache scales arrive in the attention layer, or are left out where it has none"
    return proofkit.verdict(found, right)


if __name__ == "__main__":
    proofkit.main(judge)
