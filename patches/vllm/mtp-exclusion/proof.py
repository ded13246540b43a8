"""Asks vLLM which linear layers of its multi-token-prediction (MTP) heads it would make quantized.

    python proof.py TREE

Two things of TREE are taken out of their files and run, with stand-ins for torch and the rest of vLLM: the exclusion rule
of the ModelOpt formats, and the constructor of every MTP head whose name in the model is ``mtp``. The list that is given
to them excludes ``mtp.layers.0*``, as ModelOpt's exporter wrote it for heads that it had left in BF16 as a whole.

Files read, all but the first may be missing: ``layers/quantization/modelopt.py``, ``layers/quantization/utils/quant_utils.py``
and the model files below ``vllm/model_executor/models`` (``*mtp*.py``) and ``vllm/models`` (``mtp.py``). Without any
model file the rule alone is judged.
"""

import ast
import contextlib
import fnmatch
import functools
import pathlib
import sys
import types
from unittest import mock

VLLM = pathlib.Path(sys.argv[1], "vllm")
QUANTIZATION = VLLM / "model_executor/layers/quantization"
LINEARS = ("ColumnParallelLinear", "RowParallelLinear", "ReplicatedLinear", "MergedColumnParallelLinear")


class Unknown(Exception):
    """The sources are not laid out in any way that this proof knows."""


def parse(path):
    """The syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def run(nodes, space):
    """Execute definitions in ``space``; names that they use and that neither it nor Python has are mocks."""
    for name in {n.id for node in nodes for n in ast.walk(node) if isinstance(n, ast.Name)} - set(dir(__builtins__)):
        space.setdefault(name, mock.MagicMock(name=name))
    module = ast.Module([ast.ImportFrom("__future__", [ast.alias("annotations")], 0), *nodes], [])
    exec(compile(ast.fix_missing_locations(module), "vllm", "exec"), space)
    return space


@functools.cache
def rule():
    """ModelOpt's config class with nothing but its exclusion rule and its renaming of patterns."""
    wanted = {"is_layer_excluded", "apply_vllm_mapper"}
    owners = [n for n in parse(QUANTIZATION / "modelopt.py").body if isinstance(n, ast.ClassDef)]
    owners = [c for c in owners if any(isinstance(n, ast.FunctionDef) and n.name == "is_layer_excluded" for n in c.body)]
    if len(owners) != 1:
        raise Unknown(f"{len(owners)} classes in modelopt.py define is_layer_excluded")
    owner = owners[0]
    owner.bases, owner.keywords = [], []
    owner.body = [n for n in owner.body if isinstance(n, ast.FunctionDef) and n.name in wanted]
    space = {"fnmatch": fnmatch.fnmatch, "is_layer_skipped": lambda prefix, ignored, *_a, **_n: prefix in ignored}
    if (helpers := QUANTIZATION / "utils/quant_utils.py").is_file():
        skips = [n for n in parse(helpers).body if isinstance(n, ast.FunctionDef) and n.name == "is_layer_skipped"]
        run(skips, space)
    return run([owner], space)[owner.name]


def config(patterns, renamed):
    """A checkpoint's config that excludes ``patterns``; renamed: as vLLM rewrites the patterns for a model class."""
    made = rule()()
    made.exclude_modules, made.packed_modules_mapping = list(patterns), {}
    made.get_name = lambda: "modelopt_fp4"
    if renamed:
        made.apply_vllm_mapper(types.SimpleNamespace(apply_list=list))
    return made


def heads():
    """(file name, class) of every MTP head that a model class makes under the name ``mtp``."""
    files = sorted(VLLM.glob("model_executor/models/*mtp*.py")) + sorted(VLLM.glob("models/**/mtp.py"))
    for path in files:
        tree = parse(path)
        classes = {n.name: n for n in tree.body if isinstance(n, ast.ClassDef)}
        for call in [n for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]:
            prefix = next((k.value for k in call.keywords if k.arg == "prefix"), None)
            if isinstance(prefix, ast.Call) and call.func.id in classes and ast.unparse(prefix).endswith(", 'mtp')"):
                yield path.relative_to(VLLM).as_posix(), classes[call.func.id]


def beside_layers(head, quant_config):
    """Names of the linear layers beside the head's decoder layers that get a quantization config."""
    made = {}

    def linear(*_args, prefix="", quant_config=None, **_named):
        made[prefix] = quant_config
        return mock.MagicMock()

    head.decorator_list, head.bases, head.keywords = [], [], []
    head.body = [n for n in head.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"]
    space = run([head], dict.fromkeys(LINEARS, linear))
    vllm_config = mock.MagicMock(quant_config=quant_config)
    with contextlib.suppress(Exception):  # a stand-in may not do for what follows the linear layers
        arguments = {"quant_config": quant_config} if "quant_config" in ast.unparse(head.body[0].args) else {}
        space[head.name](vllm_config=vllm_config, prefix="mtp", **arguments)
    return [p for p, given in made.items() if given is not None and not p.startswith("mtp.layers.")]


# What a list excludes, the layer, whether it must be left unquantized.
RULES = [
    (["lm_head", "mtp.layers.0*"], "mtp.layers.0.self_attn.qkv_proj", True),
    (["lm_head", "mtp.layers.0*"], "model.layers.0.mlp.gate_up_proj", False),
    (["lm_head", "mtp.layers.0*"], "mtp.layers.1.mixer.experts", False),
    (["lm_head", "mtp.layers.0.self_attn*", "mtp.layers.0.mixer.gate"], "mtp.layers.0.mixer.experts", False),
    (["lm_head", "mtp.layers.0.self_attn*"], "mtp.fc", False),
    (["lm_head", "mtp.pre_fc_norm_hidden"], "mtp.fc", False),
    (["lm_head", "mtp.fc"], "mtp.fc", True),
    (["lm_head", "mtp.fc"], "mtp.layers.0.mlp.experts", False),
    (["lm_head", "model.layers.0*"], "mtp.fc", False),
    (["lm_head", "mtp*"], "mtp.layers.0.mlp.experts", True),
    (["lm_head"], "mtp.fc", False),
    ([], "mtp.fc", False),
]
WHOLE_LAYER = ["mtp.layers.0*", "mtp.layers.0.*", "mtp.layers.48*", "mtp.layers.*"]  # 48: as 0 is called where layers count on


def symptoms():
    """Everything that is not as it should be, one line each."""
    for patterns, layer, wanted in RULES:
        for renamed in (False, True):
            if config(patterns, renamed).is_layer_excluded(layer) != wanted:
                yield f"with {patterns} excluded, {layer} is {'quantized' if wanted else 'left unquantized'}"
    found = list(heads())
    if not found and list(VLLM.glob("model_executor/models/*mtp*.py")):
        raise Unknown("no model file makes a head under the name mtp")
    layers = {name: beside_layers(head, config(["mtp.layers.0*"], False)) for name, head in found}
    layers = {name: at for name, at in layers.items() if at} if found else {"(no model file here)": ["mtp.fc"]}
    for pattern in WHOLE_LAYER:
        for renamed in (False, True):
            excluded = config(["lm_head", pattern], renamed).is_layer_excluded
            missed = {name: [layer for layer in at if not excluded(layer)] for name, at in layers.items()}
            if shown := [f"{', '.join(at)} in {name}" for name, at in missed.items() if at]:
                yield f"with {pattern} excluded, still quantized: {'; '.join(shown)}"
                return


try:
    seen = list(symptoms())
except Exception as error:  # an unknown layout may fail in any way; what Python makes of that is exit 1, a symptom
    print(f"cannot be told: {error!r}")
    sys.exit(3)
print("; ".join(dict.fromkeys(seen)) or "who excludes a layer of the MTP head excludes what stands beside its layers, and nothing else")
sys.exit(1 if seen else 0)
