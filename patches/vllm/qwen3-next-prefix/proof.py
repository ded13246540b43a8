"""Looks under which names the projections of Qwen3-Next's linear attention are built.

Every assignment to ``self.in_proj_*`` is taken out of the sources, and its layer is built with
stand-ins: where a method builds it (``create_qkvz_proj``), that method's own code is run, in every
class that has one. The prefix that reaches the layer must be the attribute's own name below the
module's: by it a checkpoint's list of unquantized layers is followed.
"""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import proofkit

FILES = (
    "models/qwen3_next.py",
    "models/qwen3_5.py",
    "layers/mamba/gdn_linear_attn.py",
    "layers/mamba/gdn/*.py",
)
MODULE = "model.layers.0.linear_attn"
#: Methods that build layers, by name: one for each class that has such a method.
Methods = Mapping[str, list[tuple[proofkit.Source, ast.FunctionDef]]]


def run_method(source: proofkit.Source, method: ast.FunctionDef, prefix: object) -> list[object]:
    """The prefixes of the layers that a ``create_...`` method builds."""
    built: list[object] = []

    def layer(*_arguments: object, **named: object) -> None:
        built.append(named.get("prefix"))

    def stand_in(name: str) -> object:
        return layer if name.endswith("Linear") else proofkit.mocked(name)

    arguments = [a.arg for a in (*method.args.args, *method.args.kwonlyargs) if a.arg != "self"]
    known = {"prefix": prefix, "quant_config": None}
    create = source.run([proofkit.bare(method)], None, stand_in)[method.name]
    create(proofkit.mocked("self"), **{name: known.get(name, 16) for name in arguments})
    return built


def prefixes(call: ast.Call, methods: Methods) -> list[object]:
    """The prefixes of the layers that come of one call."""
    expression = next((k.value for k in call.keywords if k.arg == "prefix"), None)
    if expression is None:
        return [None]
    prefix = proofkit.evaluate(expression, {"prefix": MODULE})
    if not isinstance(call.func, ast.Attribute):
        return [prefix]
    if call.func.attr not in methods:
        raise proofkit.Inconclusive(f"{call.func.attr} is not where its caller is")
    return [built for method in methods[call.func.attr] for built in run_method(*method, prefix)]


def layers(source: proofkit.Source) -> Iterator[tuple[str, ast.Call]]:
    """Attributes of the module that hold layers, and the calls that build them."""
    for node in ast.walk(source.module):
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
            continue
        target, callee = node.targets[0], node.value.func
        is_layer = isinstance(callee, ast.Name) and callee.id.endswith("Linear")
        is_method = isinstance(callee, ast.Attribute) and callee.attr.startswith("create_")
        if isinstance(target, ast.Attribute) and (is_layer or is_method):
            yield target.attr, node.value


def judge(tree: Path) -> proofkit.Verdict:
    """The symptom is a projection that is built under another name than its own."""
    folder = tree / "vllm/model_executor"
    sources = [proofkit.Source(path) for name in FILES for path in sorted(folder.glob(name))]
    methods: dict[str, list[tuple[proofkit.Source, ast.FunctionDef]]] = {}
    for source in sources:
        classes = [node for node in source.module.body if isinstance(node, ast.ClassDef)]
        for node in (node for each in classes for node in each.body):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("create_"):
                methods.setdefault(node.name, []).append((source, node))
    built = [layer for source in sources for layer in layers(source)]
    found = [(name, call) for name, call in built if name.startswith("in_proj_")]
    names = sorted({name for name, _ in found})
    if "in_proj_qkvz" not in names:
        raise proofkit.Inconclusive("in_proj_qkvz is built nowhere")
    wrong = {
        f"{name} is built as {built}, and the checkpoint has {MODULE}.{name}"
        for name, call in found
        for built in prefixes(call, methods)
        if built != f"{MODULE}.{name}"
    }
    return proofkit.verdict(sorted(wrong), f"built under their own names: {', '.join(names)}")


if __name__ == "__main__":
    proofkit.main(judge)
