"""Asks vLLM's own exclusion rule, taken out of modelopt.py and run, about the layers of an MTP head."""

import ast
import fnmatch
import pathlib
import sys
import types

FILE = pathlib.Path(sys.argv[1], "vllm/model_executor/layers/quantization/modelopt.py")


def rule():
    """The method ``is_layer_excluded`` as a plain function of (config, prefix)."""
    tree = ast.parse(FILE.read_text(encoding="utf-8"))
    found = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == "is_layer_excluded"]
    if len(found) != 1:
        raise LookupError(f"{len(found)} functions named is_layer_excluded")
    space = {
        "fnmatch": fnmatch.fnmatch,
        "is_layer_skipped": lambda prefix, ignored, *_args, **_named: prefix in ignored,
    }
    exec(compile(ast.Module([found[0]], []), str(FILE), "exec"), space)
    return space["is_layer_excluded"]


CASES = [
    # what the checkpoint excludes, the layer, whether it must be left unquantized
    (["lm_head", "mtp.layers.0*"], "mtp.fc", True),
    (["lm_head", "mtp.layers.0*"], "mtp.pre_fc_norm_hidden", True),
    (["lm_head", "mtp.layers.0*"], "mtp.layers.0.self_attn.qkv_proj", True),
    (["lm_head", "mtp.layers.0*"], "model.layers.0.mlp.gate_up_proj", False),
    (["lm_head"], "mtp.fc", False),
    (["lm_head", "model.layers.3*"], "mtp.fc", False),
    ([], "mtp.fc", False),
]

try:
    excluded = rule()
    wrong = [
        f"exclude {patterns}: {layer} is {'quantized' if wanted else 'left out'}"
        for patterns, layer, wanted in CASES
        if bool(excluded(types.SimpleNamespace(exclude_modules=patterns, packed_modules_mapping={}), layer)) != wanted
    ]
except (OSError, LookupError, SyntaxError, NameError, AttributeError) as error:
    print(f"cannot be told: {error!r}")
    sys.exit(3)
print("; ".join(wrong) or "a pattern for a part of the MTP head excludes all of it, and nothing else")
sys.exit(1 if wrong else 0)
