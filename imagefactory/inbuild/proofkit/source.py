"""A Python file of the tree, whose parts run without the rest of it."""

from __future__ import annotations

import ast
import builtins
import copy
import sys
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from .files import read
from .stand_ins import Unknown
from .verdicts import Inconclusive

#: Names and values that code is run with, and leaves behind.
Space = dict[str, Any]
Definition = TypeVar("Definition", ast.FunctionDef, ast.ClassDef)


class Source:
    """A Python file of the tree, whose parts can be run without the rest of it.

    Attributes:
        path: the file.
        text: its text.
        module: its syntax tree.
        definitions: functions, classes and assignments at its top level, by name; the last of each.
        names: every name that it has at module level, be it imported or defined under a condition.
        where: the statement that defines or imports each of them.

    Raises Inconclusive if there is no such file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.text = read(path)
        self.module = ast.parse(self.text)
        self.definitions = {name: node for node in self.module.body for name in _defined(node)}
        self.where: dict[str, ast.stmt] = {}
        for node in _statements(self.module.body):
            for name in _defined(node, imports=True):
                is_later = name in self.definitions and node in self.module.body
                if name not in self.where or is_later:
                    self.where[name] = node
        self.names = self.where.keys()
        self._compiled: dict[tuple[object, ...], tuple[set[str], types.CodeType]] = {}

    def definition(self, name: str) -> ast.stmt:
        """The statement that defines ``name`` at the top level. Raises Inconclusive without one."""
        if name not in self.definitions:
            raise Inconclusive(f"there is no {name} in {self.path}")
        return self.definitions[name]

    def cls(self, name: str) -> ast.ClassDef:
        """The class ``name``. Raises Inconclusive if there is none."""
        found = self.definition(name)
        if not isinstance(found, ast.ClassDef):
            raise Inconclusive(f"{name} is no class in {self.path}")
        return found

    def function(self, name: str, *, of: str = "") -> ast.FunctionDef:
        """The function ``name``, or that method ``of`` a class. Raises Inconclusive without it."""
        body = self.cls(of).body if of else [self.definition(name)]
        for node in reversed(body):
            if isinstance(node, ast.FunctionDef) and node.name == name:
                return node
        raise Inconclusive(f"there is no function {f'{of}.' if of else ''}{name} in {self.path}")

    def in_tree(self, root: Path, known: Mapping[str, object]) -> Space:
        """A space in which this file's names are what they are in the tree below ``root``.

        Nothing is run before it is used: then the definition is, be it in this file or in another
        one that this file imports it from. ``known`` are stand-ins, by the names that upstream has
        for them where it defines them; they hold in all files. What is neither is ``Unknown``.
        """
        return _Names(self, _Package(root, known))

    def run(
        self,
        wanted: Iterable[str | ast.stmt],
        space: Space | None = None,
        stand_in: Callable[[str], object] | None = None,
        *,
        annotated: bool = False,
    ) -> Space:
        """Run definitions, by name or as they are given, in ``space``, which is returned.

        With ``stand_in`` it makes what else they use, if the file has such a name. A name that the
        file does not have stays undefined: using it fails as it does upstream. Annotations are
        evaluated only where ``annotated``. Raises Inconclusive if a definition is missing.
        """
        space = {} if space is None else space
        used, code = self._compile(tuple(wanted), annotated=annotated)
        if stand_in:
            space.update({name: stand_in(name) for name in sorted(used - space.keys())})
        exec(code, space)  # noqa: S102 - upstream's own code is what a proof is about
        return space

    def _compile(
        self, wanted: tuple[str | ast.stmt, ...], *, annotated: bool
    ) -> tuple[set[str], types.CodeType]:
        key = (annotated, *wanted)
        if key not in self._compiled:
            nodes = [self.definition(one) if isinstance(one, str) else one for one in wanted]
            made = {name for node in nodes for name in _defined(node)}
            module = ast.fix_missing_locations(ast.Module(nodes, []))
            flags = 0 if annotated else annotations.compiler_flag
            code = compile(module, str(self.path), "exec", flags, dont_inherit=True)
            self._compiled[key] = (names_in(nodes) & self.names) - made, code
        return self._compiled[key]


class _Package:
    """The Python files below a root, and one space for each of them."""

    def __init__(self, root: Path, known: Mapping[str, object]) -> None:
        self.root, self.known = root, known
        self.spaces: dict[str, _Names] = {}

    def file(self, name: str) -> Path | None:
        """The file of a module, or None."""
        path = self.root.joinpath(*name.split("."))
        return next(
            (p for p in (path / "__init__.py", path.with_suffix(".py")) if p.is_file()), None
        )

    def imported(
        self, name: str, space: Any = None, _locals: Any = None, wanted: Any = (), level: int = 0
    ) -> Any:
        """What ``import`` gives: a module of Python or of the proof, or one of the tree."""
        top = name.partition(".")[0]
        if name == "regex":  # as Python's own, as far as it is used
            name = top = "re"
        if level == 0 and (top in sys.stdlib_module_names or name in sys.modules):
            return __import__(name, None, None, wanted, 0)
        if level:
            package = space["__package__"].split(".")
            name = ".".join([*package[: len(package) - level + 1], *filter(None, [name])])
        return _Module(self, name if wanted or level else top)


class _Python(Space):
    """Python's own names, and behind them those of a file: class bodies look them up here."""

    names: Mapping[str, object]

    def __missing__(self, name: str) -> object:
        return self.names[name]


class _Module:
    """A module of the tree: its names are there when they are asked for."""

    def __init__(self, package: _Package, name: str) -> None:
        self.__dict__.update(_package=package, _full=name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        package, full = self._package, self._full
        if name in package.known or name == "init_logger":
            return package.known[name] if name in package.known else Unknown(name)
        if f"{full}.{name}" in sys.modules:
            return sys.modules[f"{full}.{name}"]
        file = package.file(full)
        if file and full not in package.spaces:
            package.spaces[full] = _Names(Source(file), package)
        if file and name in package.spaces[full].source.names:
            return package.spaces[full][name]
        inside = package.root.joinpath(*full.split("."), name)
        if inside.is_dir() or package.file(f"{full}.{name}"):
            return _Module(package, f"{full}.{name}")
        return Unknown(f"{full}.{name}")


class _Names(Space):
    """The names of a file, each of them run when it is first asked for."""

    def __init__(self, source: Source, package: _Package) -> None:
        file = source.path.resolve()
        inside = file.parent if file.is_relative_to(package.root.resolve()) else package.root
        name = ".".join(inside.resolve().relative_to(package.root.resolve()).parts)
        python = _Python(vars(builtins), __import__=package.imported)
        super().__init__(__builtins__=python, __name__="tree", __package__=name)
        self.source, self.package, self.running = source, package, set[str]()
        python.names = self

    def __missing__(self, name: str) -> Any:
        node = self.source.where.get(name)
        if node is None or name in self.running:
            raise KeyError(name)
        if name in self.package.known:
            self[name] = self.package.known[name]
            return self[name]
        self.running.add(name)
        if isinstance(node, ast.Import | ast.ImportFrom):
            node = copy.copy(node)
            own = (a for a in node.names if _bound(a) == name)
            node.names = [next(own)]
        self.source.run([node], self)
        self.running.discard(name)
        return self[name]


def _bound(alias: ast.alias) -> str:
    return (alias.asname or alias.name).partition(".")[0]


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """All statements at module level, those under conditions too."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With):
            inner = [getattr(node, part, []) for part in ("body", "orelse", "finalbody")]
            inner += [handler.body for handler in getattr(node, "handlers", [])]
            yield from _statements(each for part in inner for each in part)


def _defined(node: ast.stmt, *, imports: bool = False) -> list[str]:
    """The names that a statement defines, or that it imports."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Import | ast.ImportFrom) and imports:
        return [_bound(alias) for alias in node.names]
    targets = node.targets if isinstance(node, ast.Assign) else []
    targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
    return [target.id for target in targets if isinstance(target, ast.Name)]


def names_in(nodes: Iterable[ast.AST]) -> set[str]:
    """Every plain name that is used or assigned in some nodes."""
    return {n.id for node in nodes for n in ast.walk(node) if isinstance(n, ast.Name)}


def bare(node: Definition, methods: Collection[str] = ()) -> Definition:
    """A copy without decorators; of a class without bases, too, and with only these methods.

    Methods of the class that these call stay with them.
    """
    node = copy.deepcopy(node)
    node.decorator_list = []
    if isinstance(node, ast.ClassDef):
        functions: list[ast.FunctionDef] = [n for n in node.body if isinstance(n, ast.FunctionDef)]
        wanted: set[str] = set()
        todo = set(methods)
        while todo:
            wanted |= todo
            kept = (n for each in functions if each.name in todo for n in ast.walk(each))
            todo = {n.attr for n in kept if isinstance(n, ast.Attribute)} - wanted
        values: list[ast.stmt] = [n for n in node.body if wanted.intersection(_defined(n))]
        values = [each for each in values if not isinstance(each, ast.FunctionDef)]
        node.bases, node.keywords = [], []
        node.body = [*values, *(each for each in functions if each.name in wanted)] or [ast.Pass()]
    return node


def evaluate(expression: ast.expr, space: Space) -> object:
    """The value of an expression of the tree."""
    tree = ast.fix_missing_locations(ast.Expression(expression))
    return eval(compile(tree, "expression", "eval"), space)  # noqa: S307 - as in Source.run
