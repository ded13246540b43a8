"""Looks under which names the projections of Qwen3-Next's linear attention are built.

    python proof.py TREE

Every assignment to ``self.in_proj_*`` is taken out of the sources, and its layer is built with stand-ins: where a method
builds it (``create_qkvz_proj``), that method's own code is run, in every class that has one. The prefix that reaches the
layer must be the attribute's own name below the module's: by it a checkpoint's list of unquantized layers is followed.
"""

import ast
import builtins
import pathlib
import sys
from unittest import mock

TREE = pathlib.Path(sys.argv[1], "vllm/model_executor")
PLACES = ("models/qwen3_next.py", "models/qwen3_5.py", "layers/mamba/gdn_linear_attn.py", "layers/mamba/gdn/*.py")
MODULE = "model.layers.0.linear_attn"


class Unknown(Exception):
    """The sources are not laid out in any way that this proof knows."""


def sources():
    """Every module that may build the projections."""
    return [ast.parse(path.read_text()) for place in PLACES for path in sorted(TREE.glob(place))]


def run_method(node, prefix):
    """The prefixes of the layers that a ``create_...`` method builds."""
    built = []
    node.decorator_list, node.returns = [], None
    for argument in (*node.args.args, *node.args.kwonlyargs):
        argument.annotation = None

    def layer(*_arguments, **named):
        built.append(named.get("prefix"))

    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} - set(dir(builtins))
    space = {name: layer if name.endswith("Linear") else mock.MagicMock(name=name) for name in names}
    exec(compile(ast.fix_missing_locations(ast.Module([node], [])), "vllm", "exec"), space)
    given = {a.arg: 16 for a in (*node.args.args, *node.args.kwonlyargs) if a.arg != "self"}
    given |= {name: value for name, value in (("prefix", prefix), ("quant_config", None)) if name in given}
    space[node.name](mock.MagicMock(), **given)
    return built


def prefixes(call, methods):
    """The prefixes of the layers that come of one call."""
    expression = next((k.value for k in call.keywords if k.arg == "prefix"), None)
    if expression is None:
        return [None]
    text = eval(compile(ast.fix_missing_locations(ast.Expression(expression)), "vllm", "eval"), {"prefix": MODULE})
    if not isinstance(call.func, ast.Attribute):
        return [text]
    if call.func.attr not in methods:
        raise Unknown(f"{call.func.attr} is not where its caller is")
    return [built for node in methods[call.func.attr] for built in run_method(node, text)]


def main():
    """Exit 0, 1 or 3, with one sentence."""
    trees = sources()
    functions = [n for tree in trees for c in tree.body if isinstance(c, ast.ClassDef) for n in c.body]
    methods = {}
    for node in functions:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("create_"):
            methods.setdefault(node.name, []).append(node)
    found, wrong = set(), set()
    for node in (n for tree in trees for n in ast.walk(tree) if isinstance(n, ast.Assign) and isinstance(n.value, ast.Call)):
        target = node.targets[0]
        if not isinstance(target, ast.Attribute) or not target.attr.startswith("in_proj_"):
            continue
        callee = node.value.func
        if not (isinstance(callee, ast.Name) and callee.id.endswith("Linear")) and not (
            isinstance(callee, ast.Attribute) and callee.attr.startswith("create_")
        ):
            continue
        found.add(target.attr)
        wrong |= {
            f"{target.attr} is built as {built}, and the checkpoint has {MODULE}.{target.attr}"
            for built in prefixes(node.value, methods)
            if built != f"{MODULE}.{target.attr}"
        }
    if "in_proj_qkvz" not in found:
        raise Unknown("in_proj_qkvz is built nowhere")
    print("; ".join(sorted(wrong)) or f"built under their own names: {', '.join(sorted(found))}")
    return 1 if wrong else 0


try:
    code = main()
except Exception as reason:  # an unknown layout may fail in any way; what Python makes of that is exit 1, a symptom
    print(f"cannot be told: {reason!r}")
    code = 3
sys.exit(code)
