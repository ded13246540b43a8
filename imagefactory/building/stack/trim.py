"""Removes from an install layer what is never used at run time, and records it.

The record is a list of ``{"rule", "why", "files": [[path, bytes], ...]}``, a row for each rule that
found something; paths are relative to site-packages. Every RECORD stays correct.
"""

from __future__ import annotations

import ast
import csv
import io
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from imagefactory.building.tree import Entry, Kind, Tree

#: Static libraries that FlashInfer, numba and nvcc link kernels with at run time.
LINKED = ("libnvshmem_device.a", "libcudadevrt.a", "libcudart_static.a")
COMPILERS = re.compile(
    r"(?:^|/)(?:nvidia/cu\d+|backends/nvidia)/(?:nvvm/)?bin/"
    r"(?P<name>nvcc|ptxas|nvlink|cicc|cudafe\+\+|fatbinary)(?:-blackwell)?$"
)
_TEST_FILE = re.compile(r"(?:test_.*|.*_tests?|conftest)\.py")
_IMPORT = re.compile(rb"^[ \t]*(?:from|import)\b[^\n(]*(?:\([^)]*\))?", re.MULTILINE)
# patterns that begin with a literal are found ten times as fast as one that begins with \b
_TESTS = re.compile(rb"tests?\b")
_BELOW = re.compile(rb"\.tests?\b")
_STRING = re.compile(rb"""["']((?:\w+\.)+tests?(?:\.\w+)*)["']""")


@dataclass(frozen=True, slots=True)
class Layer:
    """An install layer.

    Attributes:
        files: the files in its site-packages, by their path there.
        cuda_home: where the image has compilers of its own; None without any.
    """

    files: dict[str, Entry]
    cuda_home: str | None


#: What a rule found: a file, and None if it goes or what it becomes a link to.
Found = Iterator[tuple[str, str | None]]
Row = dict[str, Any]


def tests(layer: Layer) -> Found:
    """Folders of tests, except those that a module outside of them imports or names."""
    # NumPy and numba use theirs
    folders: dict[str, list[str]] = defaultdict(list)
    for name in layer.files:
        folder = _tests_folder(name)
        if folder:
            folders[folder].append(name)
    real = {folder: names for folder, names in folders.items() if any(map(_is_test, names))}
    used = _imported(layer) if real else set()
    for folder, names in real.items():
        if not any(module == folder or module.startswith(f"{folder}/") for module in used):
            yield from ((name, None) for name in names)


def _is_test(name: str) -> bool:
    return _TEST_FILE.fullmatch(name.rpartition("/")[2]) is not None


def _tests_folder(name: str) -> str | None:
    """The outermost folder of tests that ``name`` is in, below a package's own."""
    parts = name.split("/")[:-1]
    depth = next((i for i, part in enumerate(parts) if i and part in ("test", "tests")), None)
    return "/".join(parts[: depth + 1]) if depth else None


def _imported(layer: Layer) -> set[str]:
    """Modules with ``test`` or ``tests`` in their names that other modules use, as paths."""
    found: set[str] = set()
    for name in sorted(layer.files):
        if not name.endswith(".py") or _tests_folder(name):
            continue
        entry = layer.files[name]
        data = entry.read()
        layer.files[name] = replace(entry, content=data)  # it is written later, too
        if not _names_tests(data):
            continue
        found |= set(_strings(data))
        if any(map(_names_tests, _IMPORT.findall(data))):
            found |= set(_imports(data, name.split("/")[:-1]))
    return found


def _names_tests(data: bytes) -> bool:
    """Whether the word ``test`` or ``tests`` is in ``data``."""
    before = (data[match.start() - 1 : match.start()] for match in _TESTS.finditer(data))
    return any(not (byte.isalnum() or byte == b"_") for byte in before)


def _strings(data: bytes) -> Iterator[str]:
    """The modules of tests that strings in the source ``data`` name, as paths."""
    for match in _BELOW.finditer(data):
        quote = max(data.rfind(mark, 0, match.start()) for mark in (b'"', b"'"))
        if quote >= 0 and (string := _STRING.match(data, quote)):
            yield string[1].decode().replace(".", "/")


def _imports(data: bytes, package: list[str]) -> Iterator[str]:
    """What the source ``data`` of a module in ``package`` imports: modules and names, as paths."""
    for node in _nodes(data):
        if isinstance(node, ast.Import):
            yield from (alias.name.replace(".", "/") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = [*above, *(node.module or "").split(".")] if node.module else above
            yield from ("/".join([*module, alias.name]) for alias in node.names)


def _nodes(data: bytes) -> Iterator[ast.AST]:
    """What the source ``data`` consists of; only its imports if it is for another Python."""
    try:
        yield from ast.walk(ast.parse(data))
    except (SyntaxError, ValueError):  # the image's Python may be newer than this one
        for statement in _IMPORT.findall(data):
            with suppress(SyntaxError, ValueError):
                yield from ast.walk(ast.parse(statement.strip()))


def static_libraries(layer: Layer) -> Found:
    """Static libraries that no kernel is linked with at run time."""
    for name in layer.files:
        if name.endswith(".a") and name.rpartition("/")[2] not in LINKED:
            yield name, None


def compilers(layer: Layer) -> Found:
    """CUDA's compilers, if the image has its own set: different versions do not mix."""
    for name in layer.files:
        match = COMPILERS.search(name) if layer.cuda_home else None
        if match and layer.files[name].kind is Kind.FILE:
            folder = "nvvm/bin" if match["name"] == "cicc" else "bin"
            yield name, f"{layer.cuda_home}/{folder}/{match['name']}"


def copies(layer: Layer) -> Found:
    """A shared library under several of its version names; wheels cannot hold links."""
    same: dict[tuple[str, int], list[str]] = defaultdict(list)
    for name, entry in layer.files.items():
        stem, dot, _ = name.partition(".so")
        if dot and entry.kind is Kind.FILE:
            same[stem, entry.size].append(name)
    for names in same.values():
        # the fullest name is the library's own, as an installer outside of Python would leave it
        real, *others = sorted(names, key=lambda name: (-len(name), name))
        for name in others:
            if equal(layer.files[real], layer.files[name]):
                yield name, real.rpartition("/")[2]


def equal(one: Entry, other: Entry) -> bool:
    """Whether two files have the same content, which is read only if their sizes agree."""
    if one.content is other.content or one.content == other.content:
        return True
    return one.size == other.size and one.read() == other.read()


def leftovers(layer: Layer) -> Found:
    """Compiled Python, which the first start recreates, and wheels inside wheels."""
    for name in layer.files:
        if name.endswith((".pyc", ".pyo", ".whl")):
            yield name, None


RULES: tuple[tuple[str, Callable[[Layer], Found]], ...] = (
    ("tests", tests),
    ("static libraries", static_libraries),
    ("second compilers", compilers),
    ("copies of libraries", copies),
    ("compiled Python and wheels", leftovers),
)


def trim(tree: Tree, site: str, cuda_home: str | None) -> list[Row]:
    """Apply all rules to the site-packages of ``tree``, at ``site``.

    Returns what each of them removed, with sizes. ``cuda_home`` is where the image has compilers:
    those in wheels become links to them.
    """
    start = len(site) + 1
    found = {path[start:]: entry for path, entry in tree if path.startswith(f"{site}/")}
    files = {name: entry for name, entry in found.items() if entry.kind is not Kind.FOLDER}
    layer, report, fate = Layer(files, cuda_home), list[Row](), dict[str, str | None]()
    for rule, find in RULES:
        new = {name: target for name, target in find(layer) if name not in fate}
        if new:
            sizes = [[name, files[name].size] for name in sorted(new)]
            report.append({"rule": rule, "why": find.__doc__ or "", "files": sizes})
        fate |= new
        for name in new:
            del files[name]
    for name, entry in files.items():
        tree.entries[f"{site}/{name}"] = entry
    for name, target in fate.items():
        if target:
            link = Entry(kind=Kind.SYMLINK, mode=0o777, target=target)
            tree.entries[f"{site}/{name}"] = link
        else:
            del tree.entries[f"{site}/{name}"]
    if fate:
        _keep_records_correct(tree, site, fate)
        _remove_empty(tree, site)
    return report


def _keep_records_correct(tree: Tree, site: str, fate: dict[str, str | None]) -> None:
    """Remove rows of removed files from RECORDs; links are listed there without hash and size."""
    for path, entry in tree.below(f"{site}/"):
        if not path.endswith(".dist-info/RECORD") or path.count("/") != site.count("/") + 2:
            continue
        rows = list(csv.reader(io.StringIO(entry.read().decode(), newline="")))
        kept = [
            [row[0], "", ""] if row[0] in fate else row
            for row in rows
            if row and (row[0] not in fate or fate[row[0]])
        ]
        if kept != rows:
            out = io.StringIO()
            csv.writer(out, lineterminator="\n").writerows(kept)
            tree.entries[path] = replace(entry, content=out.getvalue().encode())


def _remove_empty(tree: Tree, site: str) -> None:
    """Remove folders that contain nothing any more."""
    used = set[str]()
    for path, entry in tree.entries.items():
        if entry.kind is not Kind.FOLDER:
            while (path := path.rpartition("/")[0]) and path not in used:
                used.add(path)
    for path, entry in list(tree.below(f"{site}/")):
        if entry.kind is Kind.FOLDER and path not in used:
            del tree.entries[path]
