"""Small wrong changes to Python code: what a test of that code should notice."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_SWAPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
#: Calls and variables whose text is for people: another word in a message is no wrong decision.
_MESSAGES = {"Problem", "fail", "say", "warn", "field", "option", "Option", "Argument", "debug"}
_WORDS = {"what", "fix", "shown", "reason", "help", "__all__", "summary", "detail"}
#: Encodings whose names Python reads alike with ``_`` at their end.
_ENCODINGS = {"utf-8", "latin-1", "ascii"}
#: Types that take parameters, which only type checkers read.
_GENERIC = {
    *("Callable", "Iterable", "Iterator", "Mapping", "Sequence"),
    *("dict", "frozenset", "list", "set", "tuple", "type"),
}


@dataclass(frozen=True, kw_only=True)
class Change:
    """One wrong change.

    Attributes:
        line: where it is, from 1.
        function: the first line of the function that it is in, decorators included; 0 outside.
        text: what it changes, as ``before -> after``.
        number: which change of the module it is, from 0.
    """

    line: int
    function: int
    text: str
    number: int


def changes(path: Path) -> Iterator[Change]:
    """Every change of the module at ``path``, in the order of its lines."""
    for number, (line, function, text) in enumerate(_steps(_tree(path))):
        yield Change(line=line, function=function, text=text, number=number)


def changed(path: Path, number: int) -> str:
    """The module at ``path`` with one of its changes."""
    tree = _tree(path)
    next(itertools.islice(_steps(tree), number, None))
    return ast.unparse(ast.fix_missing_locations(tree))


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _steps(tree: ast.Module) -> Iterator[tuple[int, int, str]]:
    """Change ``tree`` in one way after the other: line, function and what is changed now."""
    for function, node in _nodes(tree, 0):
        line = getattr(node, "lineno", getattr(getattr(node, "iter", None), "lineno", 1))
        for text in _mutate(node):
            yield line, function, text


def _nodes(node: ast.AST, function: int) -> Iterator[tuple[int, ast.AST]]:
    """The nodes that decide something, with the line of the function that each is in."""
    for name, value in ast.iter_fields(node):
        if name in {"annotation", "returns", "decorator_list", "type_params"}:
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not (_is_text(child) or _is_for_mypy(node, child)):
                inner = _first_line(child) if isinstance(child, ast.FunctionDef) else function
                yield inner, child
                yield from _nodes(child, inner)


def _first_line(function: ast.FunctionDef) -> int:
    return min([function.lineno, *(one.lineno for one in function.decorator_list)])


def _is_text(node: ast.AST) -> bool:
    """Whether ``node`` is a docstring or a message, or only declares something."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    if isinstance(node, ast.Call):
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        return name in _MESSAGES
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return any(isinstance(one, ast.Name) and one.id in _WORDS for one in targets)
    if isinstance(node, ast.keyword):
        return node.arg in _WORDS or _decides_nothing(node)
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    return isinstance(node, ast.Import | ast.ImportFrom | ast.JoinedStr)


def _decides_nothing(node: ast.keyword) -> bool:
    """Whether ``node`` asserts two lengths, or begins the name of a temporary folder."""
    value = node.value.value if isinstance(node.value, ast.Constant) else None
    is_prefix = node.arg == "prefix" and isinstance(value, str) and "imagefactory-" in value
    return is_prefix or node.arg == "strict"


def _is_for_mypy(parent: ast.AST, node: ast.AST) -> bool:
    """Whether ``node`` is a type or its name, which decides nothing when the program runs."""
    if isinstance(parent, ast.Subscript):
        return node is parent.slice and getattr(parent.value, "id", "") in _GENERIC
    if isinstance(parent, ast.Call):
        name = getattr(parent.func, "id", "")
        return name == "TypeVar" or (name == "cast" and node is parent.args[0])
    return False


def _mutate(node: ast.AST) -> Iterator[str]:
    """Change ``node`` in place in one way after the other; it is what it was at the end.

    Yields what the change is.
    """
    if isinstance(node, ast.If | ast.While | ast.IfExp) and not _is_swapped(node.test):
        text = f"{_short(node.test)} -> not"
        yield from _set(node, "test", ast.UnaryOp(ast.Not(), node.test), text)
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        other = _SWAPPED[type(node.ops[0])]
        text = f"{_short(node)} -> {other.__name__}"
        yield from _set(node, "ops", [other()], text)
    elif isinstance(node, ast.BoolOp):
        operator = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        text = f"{_short(node)} -> {type(operator).__name__}"
        yield from _set(node, "op", operator, text)
        yield from _without_one(node, "values", least=2)
    elif isinstance(node, ast.comprehension):
        yield from _without_one(node, "ifs", least=1)
    elif isinstance(node, ast.List | ast.Tuple | ast.Set) and isinstance(
        getattr(node, "ctx", ast.Load()), ast.Load
    ):
        yield from _without_one(node, "elts", least=2)
    elif isinstance(node, ast.Dict):
        yield from _without_item(node)
    elif isinstance(node, ast.Constant):
        yield from _constant(node)
    yield from _without_statement(node)


def _is_swapped(test: ast.expr) -> bool:
    """Whether another change makes the opposite of a condition."""
    return isinstance(test, ast.Compare) and len(test.ops) == 1


def _constant(node: ast.Constant) -> Iterator[str]:
    value = node.value
    if isinstance(value, bool):
        yield from _set(node, "value", not value, f"{value} -> {not value}")
    elif isinstance(value, int):
        yield from _set(node, "value", value + 1, f"{value} -> {value + 1}")
    elif isinstance(value, str) and value and value not in _ENCODINGS and " " not in value:
        # a text with spaces is for people
        yield from _set(node, "value", f"{value}_", f"{value!r} -> {value + '_'!r}")


def _without_statement(node: ast.AST) -> Iterator[str]:
    for part in ("body", "orelse", "finalbody"):
        body = getattr(node, part, None)
        for index, one in enumerate(body if isinstance(body, list) else ()):
            if isinstance(one, ast.Raise | ast.AugAssign | ast.Continue) or (
                isinstance(one, ast.Expr) and not isinstance(one.value, ast.Constant)
            ):
                left = [*body[:index], ast.Pass(), *body[index + 1 :]]  # type: ignore[index]
                yield from _set(node, part, left, f"without {_short(one)}")


def _without_one(node: ast.AST, part: str, *, least: int) -> Iterator[str]:
    whole = getattr(node, part)
    for index in range(len(whole)) if len(whole) >= least else ():
        left = [*whole[:index], *whole[index + 1 :]]
        yield from _set(node, part, left, f"without {_short(whole[index])}")


def _without_item(node: ast.Dict) -> Iterator[str]:
    keys, values = node.keys, node.values
    for index in range(len(keys)):
        node.keys = [*keys[:index], *keys[index + 1 :]]
        node.values = [*values[:index], *values[index + 1 :]]
        yield f"without {_short(keys[index] or values[index])}"
    node.keys, node.values = keys, values


def _set(node: ast.AST, part: str, value: object, text: str) -> Iterator[str]:
    before = getattr(node, part)
    setattr(node, part, value)
    yield text
    setattr(node, part, before)


def _short(node: ast.AST) -> str:
    try:
        text = " ".join(ast.unparse(ast.fix_missing_locations(node)).split())
    except (AttributeError, ValueError):  # a part that is no code by itself
        text = type(node).__name__
    return text if len(text) <= 60 else f"{text[:30]} … {text[-27:]}"
