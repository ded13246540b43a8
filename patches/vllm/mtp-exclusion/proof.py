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
import fnmatch
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
#: Excludes a whole layer of the head; 48 is what 0 is called where layers count on.
WHOLE_LAYER = ["mtp.layers.0*", "mtp.layers.0.*", "mtp.layers.48*", "mtp.layers.*"]


@functools.cache
def rule(vllm: Path) -> Any:
    """ModelOpt's config class with nothing but its exclusion rule and its renaming of patterns."""
    source = proofkit.Source(vllm / QUANTIZATION / "modelopt.py")
    owners = [
        node
        for node in source.module.body
        if isinstance(node, ast.ClassDef)
        and any(isinstance(n, ast.FunctionDef) and n.name == RULE for n in node.body)
    ]
    if len(owners) != 1:
        raise proofkit.Inconclusive(f"{len(owners)} classes in modelopt.py define {RULE}")
    space = {
        "fnmatch": fnmatch.fnmatch,
        "is_layer_skipped": lambda prefix, ignored, *_, **__: prefix in ignored,
    }
    utilities = vllm / QUANTIZATION / "utils/quant_utils.py"
    helpers = proofkit.Source(utilities) if utilities.is_file() else None
    if helpers and "is_layer_skipped" in helpers.definitions:
        helpers.run(["is_layer_skipped"], space, proofkit.mocked)
    source.run([proofkit.bare(owners[0], (RULE, MAPPER))], space, proofkit.mocked)
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


def beside_layers(source: proofkit.Source, head: ast.ClassDef, quant_config: Any) -> list[str]:
    """Names of the linear layers beside the head's decoder layers that get a quant config."""
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
    return [
        name
        for name, given in made.items()
        if given is not None and not name.startswith("mtp.layers.")
    ]


def rule_symptoms(vllm: Path) -> Iterator[str]:
    """Layers that the rule leaves out and should not, or should and does not."""
    for patterns, layer, wanted in RULES:
        for renamed in (False, True):
            made = config(vllm, patterns, renamed=renamed)
            if made.is_layer_excluded(layer) != wanted:
                how = "quantized" if wanted else "left unquantized"
                yield f"with {patterns} excluded, {layer} is {how}"


def head_symptoms(vllm: Path) -> Iterator[str]:
    """The first list that excludes a whole layer of a head, and not what is beside its layers."""
    found = list(heads(vllm))
    if not found and list(vllm.glob("model_executor/models/*mtp*.py")):
        raise proofkit.Inconclusive("no model file makes a head under the name mtp")
    layers = {} if found else {"(no model file here)": ["mtp.fc"]}
    for source, head in found:
        quant_config = config(vllm, ["mtp.layers.0*"], renamed=False)
        if at := beside_layers(source, head, quant_config):
            layers[source.path.relative_to(vllm).as_posix()] = at
    for pattern in WHOLE_LAYER:
        for renamed in (False, True):
            made = config(vllm, ["lm_head", pattern], renamed=renamed)
            missed = {
                name: [layer for layer in at if not made.is_layer_excluded(layer)]
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
