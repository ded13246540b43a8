"""Asks vLLM which linear layers of its multi-token-prediction (MTP) heads it would quantize.

Two things are taken out of the tree's files and run, with stand-ins for torch and the rest of vLLM:
the exclusion rule of the ModelOpt formats, and the constructor of every MTP head whose name in the
model is ``mtp``. The list that they are given excludes ``mtp.layers.0*``, as ModelOpt's exporter
wrote it for heads that it had left in BF16 as a whole.

Files read, all but the first may be missing: ``layers/quantization/modelopt.py``,
``layers/quantization/utils/quant_utils.py`` and the model files below
``vllm/model_executor/models`` (``*mtp*.py``) and ``vllm/models`` (``mtp.py``). Without any
model file the rule alone is judged.
"""

import ast
import contextlib
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import proofkit

QUANTIZATION = "model_executor/layers/quantization"
RULE, MAPPER = "is_layer_excluded", "apply_vllm_mapper"
LINEARS = (
    "ColumnParallelLinear",
    "RowParallelLinear",
    "ReplicatedLinear",
    "MergedColumnParallelLinear",
)
#: What a list excludes, the layer, whether it must be left unquantized.
RULES = [
    (["lm_head", "mtp.layers.0*"], "mtp.layers.0.self_attn.qkv_proj", True),
    (["lm_head", "mtp.layers.0*"], "model.layers.0.mlp.gate_up_proj", False),
    (["lm_head", "mtp.layers.0*"], "mtp.layers.1.mixer.experts", False),
    (
        ["lm_head", "mtp.layers.0.self_attn*", "mtp.layers.0.mixer.gate"],
        "mtp.layers.0.mixer.experts",
        False,
    ),
    (["lm_head", "mtp.layers.0.self_attn*"], "mtp.fc", False),
    (["lm_head", "mtp.pre_fc_norm_hidden"], "mtp.fc", False),
    (["lm_head", "mtp.fc"], "mtp.fc", True),
    (["lm_head", "mtp.fc"], "mtp.layers.0.mlp.experts", False),
    (["lm_head", "model.layers.0*"], "mtp.fc", False),
    (["lm_head", "mtp*"], "mtp.layers.0.mlp.experts", True),
    (["lm_head"], "mtp.fc", False),
    ([], "mtp.fc", False),
]
BELOW = "model.mtp.layers.0.mlp.experts"
#: Layers of many models, whether of a head or only named like one.
LAYERS = [
    "lm_head",
    "model.embed_tokens",
    "model.layers.0.self_attn.qkv_proj",
    "model.layers.1.mlp.experts",
    "language_model.lm_head",
    "language_model.model.layers.0.mlp.gate_up_proj",
    "language_model.model.layers.1.self_attn.o_proj",
    "visual.blocks.0.attn.qkv",
    "vision_model.encoder.layers.0.mlp.fc1",
    "audio_tower.layers.0.fc1",
    "model.mtp_block.fc",
    "model.mtp.fc",
    "language_model.mtp.fc",
    "draft.mtp.fc",
    "xmtp.fc",
    "mtp_head.fc",
    "mtpx.fc",
    "fc.mtp.norm",
    BELOW,
    "mtp.layers.1.mlp.gate_up_proj",
    "mtp.layers.10.mlp.gate_up_proj",
]
BESIDE = ["mtp.fc", "mtp.pre_fc_norm_hidden", "mtp.fc_embedding", "mtp.embed_tokens", "mtp.norm"]
INSIDE = ["mtp.layers.0.self_attn.qkv_proj", "mtp.layers.0.mlp.experts", "mtp.layers.0.eh_proj"]
#: What a list excludes, and what of the layers above it leaves unquantized, and what it may:
#: upstream looks for a pattern anywhere in a name, and a model may have the head below ``model``.
TABLE: list[tuple[list[str], list[str], list[str]]] = [
    ([], [], []),
    (["lm_head"], ["lm_head"], ["language_model.lm_head"]),
    (["visual*"], ["visual.blocks.0.attn.qkv"], []),
    (["mtp.layers.0.*"], INSIDE, [*BESIDE, BELOW]),
    (["mtp.layers.3.*"], [], BESIDE),
    (["mtp.layers.0.self_attn*"], INSIDE[:1], []),
    (["mtp.layers.0.self_attn.qkv_proj"], INSIDE[:1], []),
    (["mtp.layers.0.mlp.experts"], [INSIDE[1]], [BELOW]),
    (["mtp.pre_fc_norm_hidden"], ["mtp.pre_fc_norm_hidden"], []),
    (["model.layers.0*"], ["model.layers.0.self_attn.qkv_proj"], [LAYERS[5]]),
    (["model.mtp.layers.0.mlp*"], [BELOW], []),
    (["model.mtp.layers.0*"], [BELOW], []),
    ([f"model.layers.{number}.self_attn*" for number in range(2, 40)], [], []),
    (["mtp.layer.0*", "xmtp.layers.0*", "mtp_head.layers.0*", "layers.7.mtp*"], [], []),
]
#: Excludes a whole layer of the head; 48 is what 0 is called where layers count on.
WHOLE_LAYER = ["mtp.layers.0*", "mtp.layers.0.*", "mtp.layers.48*", "mtp.layers.*"]


@functools.cache
def rule(vllm: Path) -> Any:
    """ModelOpt's config class with nothing but its exclusion rule and its renaming of patterns."""
    source = proofkit.Source(vllm / QUANTIZATION / "modelopt.py")
    if RULE not in source.text:
        raise proofkit.Inconclusive(f"modelopt.py has no {RULE}")
    owners = [
        node
        for node in source.module.body
        if isinstance(node, ast.ClassDef)
        and any(isinstance(n, ast.FunctionDef) and n.name == RULE for n in node.body)
    ]
    if len(owners) != 1:
        raise proofkit.Inconclusive(f"{len(owners)} classes in modelopt.py define {RULE}")
    known: dict[str, object] = {}
    if not (vllm / QUANTIZATION / "utils/quant_utils.py").is_file():
        known["is_layer_skipped"] = lambda prefix, ignored, *_, **__: prefix in ignored
    space = source.in_tree(vllm.parent, known)
    source.run([proofkit.bare(owners[0], (RULE, MAPPER))], space)
    return space[owners[0].name]


def config(vllm: Path, patterns: Sequence[str], *, renamed: bool) -> Any:
    """A checkpoint's config that excludes ``patterns``, ``renamed`` as for a model class or not."""
    made = rule(vllm)()
    made.exclude_modules, made.packed_modules_mapping = list(patterns), {}
    made.get_name = lambda: "modelopt_fp4"
    if renamed:
        made.apply_vllm_mapper(SimpleNamespace(apply_list=list))
    return made


def heads(vllm: Path) -> Iterator[tuple[proofkit.Source, ast.ClassDef]]:
    """Every MTP head that a model class makes under the name ``mtp``."""
    files = sorted(vllm.glob("model_executor/models/*mtp*.py"))
    for source in map(proofkit.Source, [*files, *sorted(vllm.glob("models/**/mtp.py"))]):
        for call in (node for node in ast.walk(source.module) if isinstance(node, ast.Call)):
            prefix = next((k.value for k in call.keywords if k.arg == "prefix"), None)
            if not isinstance(prefix, ast.Call) or not ast.unparse(prefix).endswith(", 'mtp')"):
                continue
            name = call.func.id if isinstance(call.func, ast.Name) else ""
            if isinstance(source.definitions.get(name), ast.ClassDef):
                yield source, source.cls(name)


def beside_layers(
    source: proofkit.Source, head: ast.ClassDef, quant_config: Any
) -> dict[str, bool]:
    """The linear layers beside the head's decoder layers: whether they get a quant config."""
    made: dict[str, object] = {}

    def linear(*_: object, prefix: str = "", quant_config: object = None, **__: object) -> object:
        made[prefix] = quant_config
        return proofkit.mocked(prefix)

    space = dict.fromkeys(LINEARS, linear)
    source.run([proofkit.bare(head, ["__init__"])], space, proofkit.mocked)
    vllm_config = proofkit.mocked("vllm_config", quant_config=quant_config)
    with contextlib.suppress(Exception):  # stand-ins may not do for what follows the linear layers
        arguments = ast.unparse(source.function("__init__", of=head.name).args)
        more = {"quant_config": quant_config} if "quant_config" in arguments else {}
        space[head.name](vllm_config=vllm_config, prefix="mtp", **more)
    return {
        name: given is not None
        for name, given in made.items()
        if not name.startswith("mtp.layers.")
    }


def rule_symptoms(vllm: Path) -> Iterator[str]:
    """Layers that the rule leaves out and should not, or should and does not."""
    for patterns, layer, wanted in RULES:
        for renamed in (False, True):
            made = config(vllm, patterns, renamed=renamed)
            if made.is_layer_excluded(layer) != wanted:
                how = "quantized" if wanted else "left unquantized"
                yield f"with {patterns} excluded, {layer} is {how}"
    for patterns, must, may in TABLE:
        for renamed in (False, True):
            made = config(vllm, patterns, renamed=renamed)
            got = {name for name in [*LAYERS, *BESIDE, *INSIDE] if made.is_layer_excluded(name)}
            if more := sorted(got - {*must, *may}):
                yield f"with {patterns} excluded, {', '.join(more)} is left unquantized"
            if less := sorted(set(must) - got):
                yield f"with {patterns} excluded, {', '.join(less)} is quantized"


def head_symptoms(vllm: Path) -> Iterator[str]:
    """The first list that excludes a whole layer of a head, and not what is beside its layers."""
    found = list(heads(vllm))
    if not found and list(vllm.glob("model_executor/models/*mtp*.py")):
        raise proofkit.Inconclusive("no model file makes a head under the name mtp")
    layers = {} if found else {"(no model file here)": ["mtp.fc"]}
    seen = False
    for source, head in found:
        quant_config = config(vllm, ["mtp.layers.0*"], renamed=False)
        made = beside_layers(source, head, quant_config)
        seen = seen or bool(made)
        if at := [name for name, is_given in made.items() if is_given]:
            layers[source.path.relative_to(vllm).as_posix()] = at
    if found and not seen:
        raise proofkit.Inconclusive("no head makes a linear layer beside its decoder layers")
    for pattern in WHOLE_LAYER:
        for renamed in (False, True):
            # exporters sort their lists, or do not
            rules = config(vllm, ["lm_head", pattern, "visual*"], renamed=renamed)
            missed = {
                name: [layer for layer in at if not rules.is_layer_excluded(layer)]
                for name, at in layers.items()
            }
            shown = [f"{', '.join(at)} in {name}" for name, at in missed.items() if at]
            if shown:
                yield f"with {pattern} excluded, still quantized: {'; '.join(shown)}"
                return


def judge(tree: Path) -> proofkit.Verdict:
    """The symptom is a layer of a head that is quantized against its checkpoint's list."""
    right = "a list with a layer of the MTP head excludes what is beside its layers, nothing else"
    vllm = tree / "vllm"
    return proofkit.verdict([*rule_symptoms(vllm), *head_symptoms(vllm)], right)


if __name__ == "__main__":
    proofkit.main(judge)
