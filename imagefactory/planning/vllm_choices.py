"""The values that options of a vLLM release may have, read from its own sources.

Only where they are a list: a ``Literal``, an enumeration, or a table of what is registered.
Numbers, names of models and what goes together with what are for vLLM itself to judge, when it
starts; what is inside options of JSON is for `vllm_fields`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

#: Lists of values that the command line extends.
_EXTENDED = re.compile(r"""\[["'](\w+)["']\]\[["']choices["']\]""")
#: Parts of a union that no value on the command line has.
_NEUTRAL = ("None", "torch.dtype")
#: Options whose type allows any text, but whose values vLLM looks up when it starts: the module
#: below ``vllm/`` and the name of the type, enumeration or table in it.
_LOOKED_UP = {
    "--attention-backend": ("v1/attention/backends/registry.py", "AttentionBackendEnum"),
    "--distributed-executor-backend": ("config/parallel.py", "DistributedExecutorBackend"),
    "--kv-cache-dtype": ("config/cache.py", "CacheDType"),
    "--load-format": ("model_executor/model_loader/__init__.py", "LoadFormats"),
    "--mamba-backend": ("config/mamba.py", "MambaBackendEnum"),
    "--quantization": (
        "model_executor/layers/quantization/__init__.py",
        "QuantizationMethods",
    ),
    "--reasoning-parser": ("reasoning/__init__.py", "_REASONING_PARSERS_TO_REGISTER"),
    "--tool-call-parser": ("tool_parsers/__init__.py", "_TOOL_PARSERS_TO_REGISTER"),
}


def read(root: Path) -> dict[str, tuple[str, ...]]:
    """Option -> its values, for the options of the engine in the sources in ``root``."""
    engine = root / "vllm/engine/arg_utils.py"
    if not engine.is_file():
        return {}
    text = engine.read_text(encoding="utf-8")
    own = ast.parse(text)
    configs = [
        ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted((root / "vllm/config").glob("*.py"))
    ]
    named = dict(literals([own, *configs]))
    extended = set(_EXTENDED.findall(text))
    wanted = {name for name, _ in _fields([own], "EngineArgs")} - extended
    found: dict[str, set[str] | None] = {}
    # the command line is made from the configurations; the engine's arguments repeat their types
    for name, annotation in [*_fields([own], "EngineArgs"), *_fields(configs, "Config")]:
        if name in wanted:
            values, before = values_of(annotation, named), found.get(name, set())
            found[name] = None if values is None or before is None else before | values
    chosen = {
        f"--{name.replace('_', '-')}": tuple(sorted(values))
        for name, values in found.items()
        if values
    }
    return {**_looked_up(root, extended), **chosen}


def _looked_up(root: Path, extended: set[str]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for option, (path, name) in _LOOKED_UP.items():
        module = root / "vllm" / path
        if module.is_file() and option[2:].replace("-", "_") not in extended:
            values = _listed(ast.parse(module.read_text(encoding="utf-8")), name)
            found |= {option: tuple(sorted(values))} if values else {}
    return found


def _listed(tree: ast.Module, name: str) -> set[str]:
    """The values of the type, the members of the enumeration, or the keys of the table ``name``."""
    named = dict(literals([tree]))
    if name in named:
        return values_of(named[name], named) or set()
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            members = (part.targets for part in node.body if isinstance(part, ast.Assign))
            return {t.id.lower() for targets in members for t in targets if isinstance(t, ast.Name)}
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                keys = (key.value for key in node.value.keys if isinstance(key, ast.Constant))
                return {str(key) for key in keys}
    return set()


def given(arguments: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The options in ``arguments`` that have one value, each with its value."""
    words = list(arguments)
    for number, word in enumerate(words):
        if not word.startswith("--"):
            continue
        name, equals, value = word.partition("=")
        option, dot, keys = name.partition(".")
        name = f"{option.replace('_', '-')}{dot}{keys}"
        if equals:
            yield name, value
        elif number + 1 < len(words) and not words[number + 1].startswith("-"):
            yield name, words[number + 1]


def literals(trees: Iterable[ast.Module]) -> Iterator[tuple[str, ast.expr]]:
    """The names of types that modules define, such as ``ModelDType = Literal[...]``."""
    for tree in trees:
        for node in tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript):
                yield from (
                    (target.id, node.value)
                    for target in node.targets
                    if isinstance(target, ast.Name)
                )


def _fields(trees: Iterable[ast.Module], suffix: str) -> Iterator[tuple[str, ast.expr]]:
    """The fields of classes whose names end with ``suffix``, with their annotations."""
    for tree in trees:
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name.endswith(suffix):
                for part in node.body:
                    if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                        yield part.target.id, part.annotation


def values_of(annotation: ast.expr, named: Mapping[str, ast.expr]) -> set[str] | None:
    """The strings that the type allows; None if it allows others, or cannot be read."""
    if isinstance(annotation, ast.BinOp) and isinstance(annotation.op, ast.BitOr):
        left, right = values_of(annotation.left, named), values_of(annotation.right, named)
        return None if left is None or right is None else left | right
    if ast.unparse(annotation) in _NEUTRAL:
        return set()
    if isinstance(annotation, ast.Name) and annotation.id in named:
        return values_of(named[annotation.id], _without(annotation.id, named))
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Literal":
        inner = annotation.slice
        items = inner.elts if isinstance(inner, ast.Tuple) else [inner]
        found: set[str] = set()
        for item in items:
            own = _member(item, named)
            if own is None:
                return None
            found |= own
        return found
    return None


def _member(item: ast.expr, named: Mapping[str, ast.expr]) -> set[str] | None:
    """The values of one member of a ``Literal``, which may be the name of another."""
    if isinstance(item, ast.Constant):
        return set() if item.value is None else {str(item.value)}
    return values_of(item, named) if isinstance(item, ast.Name) else None


def _without(name: str, named: Mapping[str, ast.expr]) -> dict[str, ast.expr]:
    return {other: value for other, value in named.items() if other != name}
