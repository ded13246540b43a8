"""The values that options of a vLLM release may have, read from its own sources.

Only where they are a fixed list (``Literal``): numbers, JSON, names of models and what goes
together with what are for vLLM itself to judge, when it starts.
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
    named = dict(_literals([own, *configs]))
    wanted = {name for name, _ in _fields([own], "EngineArgs")} - set(_EXTENDED.findall(text))
    found: dict[str, set[str] | None] = {}
    # the command line is made from the configurations; the engine's arguments repeat their types
    for name, annotation in [*_fields([own], "EngineArgs"), *_fields(configs, "Config")]:
        if name in wanted:
            values, before = _values(annotation, named), found.get(name, set())
            found[name] = None if values is None or before is None else before | values
    return {
        f"--{name.replace('_', '-')}": tuple(sorted(values))
        for name, values in found.items()
        if values
    }


def given(arguments: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The options in ``arguments`` that have one value, each with its value."""
    words = list(arguments)
    for number, word in enumerate(words):
        if not word.startswith("--"):
            continue
        name, equals, value = word.partition("=")
        if equals:
            yield name.replace("_", "-"), value
        elif number + 1 < len(words) and not words[number + 1].startswith("-"):
            yield name.replace("_", "-"), words[number + 1]


def _literals(trees: Iterable[ast.Module]) -> Iterator[tuple[str, ast.expr]]:
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


def _values(annotation: ast.expr, named: Mapping[str, ast.expr]) -> set[str] | None:
    """The strings that the type allows; None if it allows others, or cannot be read."""
    if isinstance(annotation, ast.BinOp) and isinstance(annotation.op, ast.BitOr):
        left, right = _values(annotation.left, named), _values(annotation.right, named)
        return None if left is None or right is None else left | right
    if ast.unparse(annotation) in _NEUTRAL:
        return set()
    if isinstance(annotation, ast.Name) and annotation.id in named:
        return _values(named[annotation.id], {})
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Literal":
        inner = annotation.slice
        items = inner.elts if isinstance(inner, ast.Tuple) else [inner]
        texts = {item.value for item in items if isinstance(item, ast.Constant)}
        if len(texts) == len(items):
            return {str(text) for text in texts if text is not None}
    return None
