"""Spoils what a diff added to a file, in many small ways, without knowing what it is about.

Python is changed by its syntax tree, everything else (CMake, CUDA, metadata) line by line.
Comments, docstrings and the words of messages are left alone: nothing depends on them.
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
#: Functions whose argument will do instead of what they return.
UNWRAPPED = (
    *("list", "sorted", "int", "max", "min", "any", "all", "set", "tuple"),
    *("math.ceil", "math.floor"),
)
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
    words = _words(after) if PurePosixPath(file).suffix == ".py" else set()
    for number in sorted(added - words):
        line = new[number - 1].strip()
        if _is_code(line):
            note("".join(new[: number - 1] + new[number:]), f"{number}: {line} -> (dropped)")
    data = after.encode()
    starts = _starts(data)
    if PurePosixPath(file).suffix == ".py":
        changes = _of_python(ast.parse(after), data, starts, added)
    else:
        changes = _of_lines(new, starts, added)
    for start, end, text in changes:
        number = data[:start].count(b"\n") + 1
        was = " ".join(data[start:end].decode().split())
        change = f"{number}: {was} -> {' '.join(text.decode().split())}"
        note((data[:start] + text + data[end:]).decode(), change)
    return list(found.values())


def _words(text: str) -> set[int]:
    """The lines of docstrings."""
    found = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Expr))
    strings = [node for node in found if isinstance(node.value, ast.Constant)]
    spans = (range(node.lineno, (node.end_lineno or node.lineno) + 1) for node in strings)
    return {number for span in spans for number in span}


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
            yield from ((start, end, text.encode()) for text in _of_expression(node))
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


def _of_expression(node: ast.expr) -> Iterator[str]:
    """What else an expression could be."""
    if isinstance(node, ast.Constant):
        yield from (ast.unparse(ast.Constant(value)) for value in _other_than(node.value))
    elif isinstance(node, ast.BoolOp):
        yield from _of_operands(node)
    elif isinstance(node, ast.UnaryOp):
        yield f"({ast.unparse(node.operand)})"
    elif isinstance(node, ast.List | ast.Tuple) and isinstance(node.ctx, ast.Load):
        for index in range(len(node.elts)):
            rest = node.elts[:index] + node.elts[index + 1 :]
            yield ast.unparse(type(node)(rest, ast.Load()))
    elif isinstance(node, ast.Compare | ast.BinOp):
        yield from _of_two(node)
    elif isinstance(node, ast.Call):
        calls = [*_wider(node), *_narrower(node)]
        yield from (f"({ast.unparse(made)})" for made in calls)


def _of_operands(node: ast.BoolOp) -> Iterator[str]:
    swapped = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
    yield f"({ast.unparse(ast.BoolOp(swapped, node.values))})"
    for index in range(len(node.values)):
        rest = node.values[:index] + node.values[index + 1 :]
        yield f"({ast.unparse(rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest))})"


def _of_two(node: ast.Compare | ast.BinOp) -> Iterator[str]:
    if isinstance(node, ast.Compare):
        left, right = ast.unparse(node.left), ast.unparse(node.comparators[0])
        for op in COMPARED.get(type(node.ops[0]), ()) if len(node.ops) == 1 else ():
            yield f"({left}) {op} ({right})"
    elif type(node.op) in CALCULATED:
        left, right = f"({ast.unparse(node.left)})", f"({ast.unparse(node.right)})"
        yield from (f"({left} {CALCULATED[type(node.op)]} {right})", left, right)
        if isinstance(node.op, ast.Mult | ast.Div):
            yield from (f"({ast.unparse(node)} * {factor})" for factor in (1.08, 2.0))


def _wider(node: ast.Call) -> Iterator[ast.expr]:
    """Calls that ask another question, and matches that match more."""
    if isinstance(node.func, ast.Attribute):
        name, owner = node.func.attr, node.func.value
        for other in sorted({*CAPABILITY} - {name}) if name in CAPABILITY else ():
            yield ast.Call(ast.Attribute(owner, other, ast.Load()), node.args, node.keywords)
        if name in ("startswith", "endswith"):
            yield ast.Compare(node.args[0], [ast.In()], [owner])
        if name in ("strip", "lower", "copy", "replace", "removeprefix", "get"):
            yield owner
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    if swapped := {"min": "max", "max": "min", "any": "all", "all": "any"}.get(name):
        yield ast.Call(ast.Name(swapped, ast.Load()), node.args, node.keywords)


def _narrower(node: ast.Call) -> Iterator[ast.expr]:
    """Calls without a keyword, and their arguments alone: a copy becomes what it is a copy of."""
    if ast.unparse(node.func) in UNWRAPPED:
        yield from node.args
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
