"""Judges a merged file by itself: whether it compiles, and whether its new lines can be reached.

Python is compiled. C++ and CUDA are not: that takes the headers of torch and CUDA; their brackets
are counted, and statements right after a ``return`` are found by their indentation.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

PYTHON = frozenset({".py", ".pyi"})
CPLUSPLUS = frozenset({".cu", ".cuh", ".h", ".hpp", ".inl", ".cpp", ".cc"})
_PAIRS = (("(", ")"), ("[", "]"), ("{", "}"))
#: Comments, strings and characters of C++, whose brackets do not count.
_NOT_CODE = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)"'
    r'|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'',
    re.DOTALL,
)
_LEAVES = re.compile(r"^(\s*)(?:return\b[^;{}]*|break|continue|goto \w+);\s*$")
_NO_STATEMENT = re.compile(r"\s*(?:[#})\]]|case\b|default\s*:|\w+\s*:(?!:)|else\b|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """A file in a merge: the new release's, merged, and the old release's, patched."""

    upstream: str
    merged: str
    old: str
    patched: str


def fault(name: str, texts: Texts) -> str:
    """What is wrong with the merged text of the file ``name``; empty if nothing was found.

    Faults of upstream's own text do not count, nor do those that the patch has on the old release.
    """
    suffix = PurePosixPath(name).suffix
    if suffix in PYTHON:
        return _python_fault(name, texts)
    return _cplusplus_fault(name, texts) if suffix in CPLUSPLUS else ""


def _python_fault(name: str, texts: Texts) -> str:
    if isinstance(_parsed(texts.upstream), str):
        return ""
    tree = _parsed(texts.merged)
    if isinstance(tree, str):
        return f"{name} does not compile: {tree}"
    sides = (texts.upstream, texts.patched)
    known = Counter(text for side in sides for _, text in _unreachable(_parsed(side)))
    for line, text in _unreachable(tree):
        if not known[text]:
            return f"{name}:{line} is never reached: it follows a return, raise, break or continue"
        known[text] -= 1
    return ""


def _parsed(text: str) -> ast.Module | str:
    """The syntax tree of a Python file, or why it has none."""
    try:
        compile(text, "merged", "exec", dont_inherit=True)
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        line = f" (line {error.lineno})" if isinstance(error, SyntaxError) else ""
        return f"{error.args[0] if error.args else error}{line}"


def _unreachable(tree: ast.Module | str) -> Iterator[tuple[int, str]]:
    """The line and text of each statement that follows one that leaves its block."""
    leaves = (ast.Return, ast.Raise, ast.Break, ast.Continue)
    for node in ast.walk(tree) if isinstance(tree, ast.Module) else ():
        for part in ("body", "orelse", "finalbody"):
            statements = getattr(node, part, None)
            if not isinstance(statements, list):
                continue
            for before, after in itertools.pairwise(statements):
                if isinstance(before, leaves):
                    yield after.lineno, ast.unparse(after)


def _cplusplus_fault(name: str, texts: Texts) -> str:
    upstream, merged, old, patched = (
        _blanked(text) for text in (texts.upstream, texts.merged, texts.old, texts.patched)
    )
    for opening, closing in _PAIRS:
        surplus = [
            text.count(opening) - text.count(closing) for text in (upstream, merged, old, patched)
        ]
        if surplus[1] - surplus[0] != surplus[3] - surplus[2]:
            return f"{name} has {opening} and {closing} that do not match"
    known = Counter(text for side in (upstream, patched) for _, text in _after_leaving(side))
    for line, text in _after_leaving(merged):
        if not known[text]:
            return f"{name}:{line} is never reached: it follows a return, break or continue"
        known[text] -= 1
    return ""


def _blanked(text: str) -> str:
    """C++ without comments and strings; its lines keep their numbers."""
    return _NOT_CODE.sub(lambda match: "\n" * match[0].count("\n"), text)


def _after_leaving(text: str) -> Iterator[tuple[int, str]]:
    """The statements at the indentation of the ``return`` right before them."""
    indent: str | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        if indent is not None and not _NO_STATEMENT.match(line):
            own = line[: len(line) - len(line.lstrip())]
            if own == indent:
                yield number, line.strip()
        leaves = _LEAVES.match(line)
        indent = leaves[1] if leaves else None
