"""Spoils what a diff added to a file, in many small ways, without knowing what it is about.

Python is changed by its syntax tree, everything else (CMake, CUDA, metadata) line by line. Comments,
docstrings and the words of messages are left alone: nothing depends on them.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

#: Part of a line (in bytes, for that is how Python counts columns), and what takes its place.
Change = tuple[int, int, bytes]

CAPABILITY = (
    "is_device_capability",
    "has_device_capability",
    "is_device_capability_family",
)
COMPARED: dict[type[ast.cmpop], tuple[str, ...]] = {
    ast.Eq: ("!=", "in", ">=", "<="),
    ast.NotEq: ("==",),
    ast.Lt: ("<=", ">="),
    ast.LtE: ("<", ">"),
    ast.Gt: (">=", "<="),
    ast.GtE: (">", "<"),
    ast.Is: ("is not",),
    ast.IsNot: ("is",),
    ast.In: ("not in",),
    ast.NotIn: ("in",),
}
CALCULATED: dict[type[ast.operator], str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "/",
    ast.Div: "*",
    ast.FloorDiv: "*",
}
#: In a language that is not parsed.
SWAPPED = (
    (r"&&", "||"),
    (r"\|\|", "&&"),
    (r"!defined\(", "defined("),
    (r"(?<!!)defined\(", "!defined("),
    (r"(?<=\w )>(?= )", ">="),
    (r">=", ">"),
    (r"(?<=\w )<(?= )", "<="),
    (r"==", "!="),
    (r"<<", ">>"),
    (r"(?<=return )(?=\w)", "!"),
    (r"(?<=[.\d])f\b(?=[;\"])", "a"),
    (r"\[af\]", "a"),
    (r"\[af\]", "f"),
    (r"\b0\b", "1"),
    (r"\b1\b", "0"),
)


@dataclass(frozen=True, kw_only=True)
class Edit:
    """A file as it is after one change; ``change`` says which."""

    file: str
    change: str
    text: str


def edits(file: str, before: str, after: str) -> list[Edit]:
    """Every way to spoil what ``after`` has and ``before`` has not, each once."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    hunks = [
        code
        for code in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
        if code[0] != "equal"
    ]
    found: dict[str, Edit] = {}

    def note(text: str, change: str) -> None:
        compiles = PurePosixPath(file).suffix != ".py" or _parses(text)
        if compiles and text not in (before, after):
            found.setdefault(text, Edit(file=file, change=f"{file}:{change}", text=text))

    for _, i, j, k, m in hunks:
        if len(hunks) > 1 and any(_is_code(line) for line in old[i:j] + new[k:m]):
            note("".join(new[:k] + old[i:j] + new[m:]), f"{k + 1}: the hunk is dropped")
    added = {number for _, _, _, k, m in hunks for number in range(k + 1, m + 1)}
    for number in sorted(added):
        line = new[number - 1].strip()
        if _is_code(line):
            note("".join(new[: number - 1] + new[number:]), f"{number}: {line} -> (dropped)")
    data = after.encode()
    if PurePosixPath(file).suffix == ".py":
        starts = _starts(data)
        changes = _of_python(ast.parse(after), data, starts, added)
    else:
        starts = _starts(data)
        changes = _of_lines(new, starts, added)
    for start, end, text in changes:
        number = data[:start].count(b"\n") + 1
        was = " ".join(data[start:end].decode().split())
        change = f"{number}: {was} -> {' '.join(text.decode().split())}"
        note((data[:start] + text + data[end:]).decode(), change)
    return list(found.values())


def _is_code(line: str) -> bool:
    return bool(line.strip()) and not line.strip().startswith(("# ", "//"))


def _parses(text: str) -> bool:
    try:
        compile(text, "mutant", "exec", ast.PyCF_ONLY_AST)
    except SyntaxError:
        return False
    return True


def _starts(data: bytes) -> list[int]:
    starts = [0]
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return starts


def _of_lines(lines: list[str], starts: list[int], added: set[int]) -> Iterator[Change]:
    for number in sorted(added):
        line, start = lines[number - 1], starts[number - 1]
        code = line.partition("//")[0]
        if code.lstrip().startswith(("# ", "#pragma")):
            continue
        for pattern, new in SWAPPED:
            for found in re.finditer(pattern, code):
                at = start + len(code[: found.start()].encode())
                yield at, at + len(found[0].encode()), new.encode()
        for found in re.finditer(r"\d+\.\d+(?=f\b)|(?<![\w.])\d+(?:\.\d+)*(?=[af]?[;\"\s+])", code):
            number_, at = found[0], start + len(code[: found.start()].encode())
            if re.fullmatch(r"\d+\.\d+", number_):
                other = f"{float(number_) * 1.08:g}"
                yield at, at + len(number_), other.encode()
            head, _, tail = number_.rpartition(".")
            yield at, at + len(number_), f"{head}.{int(tail) + 1}".lstrip(".").encode()
        for text in re.finditer(r'"([^"]*;[^"]*)"', code):
            parts = text[1].split(";")
            for index in range(len(parts)):
                kept = ";".join(parts[:index] + parts[index + 1 :])
                at = start + len(code[: text.start(1)].encode())
                yield at, at + len(text[1].encode()), kept.encode()


def _of_python(
    module: ast.Module, data: bytes, starts: list[int], added: set[int]
) -> Iterator[Change]:
    def span(node: ast.expr | ast.stmt) -> tuple[int, int]:
        end_line, end = node.end_lineno or node.lineno, node.end_col_offset or 0
        first = starts[node.lineno - 1] + node.col_offset
        return first, starts[end_line - 1] + end

    def source(node: ast.expr | ast.stmt) -> bytes:
        start, end = span(node)
        return data[start:end]

    for node in _code(module):
        if not isinstance(node, ast.expr | ast.stmt):
            continue
        if not added.issuperset(range(node.lineno, (node.end_lineno or node.lineno) + 1)):
            continue
        start, end = span(node)
        if isinstance(node, ast.stmt):
            yield from ((start, end, text) for text in _instead_of(node))
        else:
            for change in _of_expression(node, source):
                yield (start, end, change)
        tests = [node.test] if isinstance(node, ast.If | ast.IfExp | ast.While) else []
        for test in tests:
            yield (*span(test), b"not (" + source(test) + b")")
            yield (*span(test), b"True")
            yield (*span(test), b"False")


def _code(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes that are run: no docstrings, no messages of exceptions and logs, no annotations."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return
    yield node
    if isinstance(node, ast.Raise | ast.JoinedStr):
        return
    if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("logger."):
        return
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns") or (name == "msg" and isinstance(node, ast.Assert)):
            continue
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, ast.AST):
                yield from _code(each)


def _instead_of(node: ast.stmt) -> Iterator[bytes]:
    if isinstance(node, ast.Return):
        yield from (b"return None", b"return True", b"return False")
    elif isinstance(node, ast.For | ast.If | ast.Expr | ast.Assign | ast.AnnAssign | ast.AugAssign):
        yield from (b"pass", b"return", b"return True")
    elif isinstance(node, ast.Raise | ast.Assert):
        yield b"pass"


def _of_expression(node: ast.expr, source: object) -> Iterator[bytes]:
    text = ast.unparse

    def other(made: ast.expr) -> bytes:
        return f"({text(made)})".encode()

    if isinstance(node, ast.Constant):
        yield from (text(ast.Constant(value)).encode() for value in _other_than(node.value))
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        for op in COMPARED.get(type(node.ops[0]), ()):
            yield f"({text(node.left)}) {op} ({text(node.comparators[0])})".encode()
    elif isinstance(node, ast.BoolOp):
        swapped = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
        yield other(ast.BoolOp(swapped, node.values))
        for index in range(len(node.values)):
            rest = node.values[:index] + node.values[index + 1 :]
            yield other(rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest))
    elif isinstance(node, ast.BinOp) and type(node.op) in CALCULATED:
        left, right = f"({text(node.left)})", f"({text(node.right)})"
        yield f"({left} {CALCULATED[type(node.op)]} {right})".encode()
        if isinstance(node.op, ast.Mult | ast.Div):
            yield from (f"({text(node)} * {factor})".encode() for factor in (1.08, 2.0))
        yield from (left.encode(), right.encode())
    elif isinstance(node, ast.UnaryOp):
        yield other(node.operand)
    elif isinstance(node, ast.List | ast.Tuple) and isinstance(node.ctx, ast.Load):
        for index in range(len(node.elts)):
            rest = node.elts[:index] + node.elts[index + 1 :]
            kind = (
                ast.List(rest, ast.Load())
                if isinstance(node, ast.List)
                else ast.Tuple(rest, ast.Load())
            )
            yield text(kind).encode()
    elif isinstance(node, ast.Call):
        yield from (
            other(made) if isinstance(made, ast.Name) else text(made).encode()
            for made in _calls(node)
        )


def _calls(node: ast.Call) -> Iterator[ast.expr]:
    """Other calls: of a wider question, without one argument, or none."""
    if isinstance(node.func, ast.Attribute):
        name, owner = node.func.attr, node.func.value
        if name in CAPABILITY:
            for other in CAPABILITY:
                yield ast.Call(ast.Attribute(owner, other, ast.Load()), node.args, node.keywords)
        if name in ("startswith", "endswith"):
            yield ast.Compare(node.args[0], [ast.In()], [owner])
        if name in ("strip", "lower", "copy", "replace", "removeprefix", "get"):
            yield owner
    elif isinstance(node.func, ast.Name):
        if node.func.id in ("list", "sorted", "int", "max", "min", "any", "all", "set", "tuple"):
            yield from node.args
        swapped = {"min": "max", "max": "min", "any": "all", "all": "any"}.get(node.func.id)
        if swapped:
            yield ast.Call(ast.Name(swapped, ast.Load()), node.args, node.keywords)
    if (
        len(node.args) == 1
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("ceil", "floor")
    ):
        yield node.args[0]
    for index in range(len(node.keywords)):
        kept = node.keywords[:index] + node.keywords[index + 1 :]
        yield ast.Call(node.func, node.args, kept)


def _other_than(value: object) -> Iterator[str | int | float | bool | None]:
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value + 1, max(value - 1, 0), value * 2)
    elif isinstance(value, float):
        yield from (value * 1.08, value * 2)
    elif isinstance(value, str):
        yield from ("", f"{value}x")
    elif value is None:
        yield 1
