"""What the proofs of patches share. Standard library only: it lies beside them in images, too.

A proof is a program, ``python proof.py TREE`` with this folder on PYTHONPATH. It prints what it saw
in one line and exits 0 (the behaviour is right), 1 (the symptom is there) or 3 (inconclusive)::

    import proofkit

    def judge(tree: Path) -> proofkit.Verdict:
        pick = proofkit.Source(tree / "vllm/kernels.py").run(["pick"])["pick"]
        wrong = [] if pick((12, 1)) == "marlin" else [f"12.1 gets {pick((12, 1))}"]
        return proofkit.verdict(wrong, right="12.1 gets Marlin")

    if __name__ == "__main__":
        proofkit.main(judge)
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import copy
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import traceback
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn, TypeVar

RIGHT, SYMPTOM, INCONCLUSIVE = 0, 1, 3
#: Names the CUDA toolchain: a folder with ``bin/nvcc`` and ``include``.
CUDA = "IMAGEFACTORY_CUDA"
#: Audit events around a search of the tree; a program that traces a proof sets TRACER to its file.
SEARCH, SEARCHED = "imagefactory.search", "imagefactory.searched"
TRACER = "IMAGEFACTORY_TRACER"
#: What a proof may need beyond Python, as ``needs`` of its patch.yaml says.
Need = Literal["cmake", "g++", "numpy", "nvcc"]

#: Names and values that code is run with, and leaves behind.
Space = dict[str, Any]
Definition = TypeVar("Definition", ast.FunctionDef, ast.ClassDef)


class Inconclusive(BaseException):
    """Nothing can be said on this machine, or of sources laid out like these; its text says why.

    It passes through upstream's own ``except Exception``.
    """


class Unknown:
    """Stands for something that a proof knows nothing about.

    It can be called, handed on, decorate or be a base class. Wherever it would decide (a condition,
    a comparison, a loop), the proof is inconclusive.
    """

    def __init__(self, name: str) -> None:
        self.__dict__["_name"] = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.__dict__.setdefault(name, Unknown(f"{self._name}.{name}"))

    def __call__(self, *given: object, **named: object) -> Any:
        if len(given) == 1 and not named:
            is_plain = isinstance(given[0], type | types.FunctionType)
            if is_plain or "__wrapped__" in getattr(given[0], "__dict__", {}):  # decorated by this
                return given[0]
        return Unknown(f"{self._name}()")

    def __getitem__(self, key: object) -> Any:
        return Unknown(f"{self._name}[]")

    def __or__(self, other: object) -> Any:
        return self

    def __mro_entries__(self, bases: object) -> tuple[type, ...]:
        return ()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def _decides(self, *_: object) -> Any:
        raise Inconclusive(f"{self._name} would decide, and this proof does not know it")

    __ror__ = __or__
    __hash__ = object.__hash__
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _decides
    __bool__ = __len__ = __iter__ = __contains__ = __index__ = __float__ = _decides


class Verdict(NamedTuple):
    """How a proof ends: RIGHT, SYMPTOM or INCONCLUSIVE, and what was seen."""

    code: int
    reason: str


def verdict(symptoms: Iterable[str], right: str) -> Verdict:
    """SYMPTOM with everything that is wrong, said once each; RIGHT if there is nothing."""
    found = "; ".join(dict.fromkeys(symptoms))
    return Verdict(SYMPTOM, found) if found else Verdict(RIGHT, right)


def main(judge: Callable[[Path], Verdict]) -> NoReturn:
    """Judge the tree that the command line names, print the verdict and exit with its code.

    Whatever goes wrong in ``judge`` is inconclusive: Python's own exit code for it is that of a
    symptom.
    """
    if len(sys.argv) != 2:
        end(INCONCLUSIVE, f"usage: python {sys.argv[0]} TREE")
    tree = Path(sys.argv[1]).resolve()
    if not tree.is_dir():
        end(INCONCLUSIVE, f"there is no folder {tree}")
    try:
        code, reason = judge(tree)
    except Inconclusive as why:
        code, reason = INCONCLUSIVE, str(why)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - sources fail in ways nobody knows yet
        at = traceback.extract_tb(error.__traceback__)[-1]
        line = f"{Path(at.filename).name} line {at.lineno}"
        code, reason = INCONCLUSIVE, f"{type(error).__name__}: {error} ({line})"
    end(code, reason.replace(f"{tree}/", ""))


def end(code: int, reason: str) -> NoReturn:
    """Print one line and exit."""
    line = " ".join(reason.split())
    print(f"inconclusive: {line}" if code == INCONCLUSIVE else line)
    sys.exit(code)


def read(path: Path) -> str:
    """The text of a file of the tree. Raises Inconclusive if there is none."""
    if not path.is_file():
        raise Inconclusive(f"there is no file {path}")
    return path.read_text(encoding="utf-8", errors="replace")


def holding(folder: Path, names: str, text: str = "") -> list[Path]:
    """The files below ``folder`` with a name like ``names`` and ``text`` in them, sorted.

    Both are regular expressions; ``names`` must match the whole name. Releases in which the same
    files are found are the same to a proof, whatever else the folder holds.
    """
    sys.audit(SEARCH, str(folder), names, text)
    try:
        return found_in(folder, names, text)
    finally:
        sys.audit(SEARCHED)


def found_in(folder: Path, names: str, text: str) -> list[Path]:
    """What ``holding`` gives."""
    name, inside = re.compile(names), re.compile(text.encode())
    files = (Path(at, one) for at, _, own in os.walk(folder) for one in own if name.fullmatch(one))
    return sorted(file for file in files if not text or inside.search(file.read_bytes()))


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


class Fields:
    """An object with the given fields; what else it is asked for is ``Unknown``."""

    def __init__(self, **given: object) -> None:
        vars(self).update(given)

    def __getattr__(self, name: str) -> object:
        return Unknown(name)


class Known(dict[str, object]):
    """Stand-ins by name for ``Source.in_tree``; ``make`` gives those that match a pattern."""

    def __init__(self, pattern: str, make: Callable[[str], object], **given: object) -> None:
        super().__init__(given)
        self.pattern, self.make = re.compile(pattern), make

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or bool(self.pattern.fullmatch(str(name)))

    def __missing__(self, name: str) -> object:
        self[name] = self.make(name)
        return self[name]


def mocked(name: str, **attributes: object) -> Any:
    """A stand-in that does anything, such as for ``Source.run``."""
    from unittest import mock  # noqa: PLC0415 - most of the time that a small proof takes

    return mock.MagicMock(name=name, **attributes)


@contextlib.contextmanager
def modules(contents: Mapping[str, Mapping[str, object]]) -> Iterator[None]:
    """Modules that can be imported meanwhile: their contents, by name."""
    from unittest import mock  # noqa: PLC0415 - as above

    made = {name: types.ModuleType(name) for full in contents for name in _with_parents(full)}
    for name, inside in contents.items():
        vars(made[name]).update(inside)
    with mock.patch.dict(sys.modules, made):
        yield


def _with_parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts) + 1)]


def missing(needs: Iterable[Need], env: Mapping[str, str]) -> str:
    """Which of ``needs`` this machine lacks, in words; empty if none."""
    lacking = [need for need in needs if not _has(need, env)]
    text = f"needs {' and '.join(lacking)}" if lacking else ""
    return text.replace("nvcc", f"a CUDA toolchain in {CUDA}")


def _has(need: Need, env: Mapping[str, str]) -> bool:
    if need == "nvcc":
        return os.access(Path(env.get(CUDA) or "/nonexistent", "bin/nvcc"), os.X_OK)
    if need == "numpy":
        return importlib.util.find_spec(need) is not None
    return shutil.which(need, path=env.get("PATH")) is not None


def require(*needs: Need) -> None:
    """Raises Inconclusive if this machine lacks one of ``needs``."""
    if lacking := missing(needs, os.environ):
        raise Inconclusive(lacking)


def cuda_home() -> Path:
    """The CUDA toolchain. Raises Inconclusive without one."""
    require("nvcc")
    return Path(os.environ[CUDA]).resolve()


def command(argv: Sequence[str | Path], folder: Path | None = None) -> tuple[int, str]:
    """Run a program to its end in ``folder``; its exit code, and all that it wrote."""
    done = subprocess.run(
        argv, cwd=folder, capture_output=True, text=True, errors="replace", check=False
    )
    return done.returncode, done.stdout + done.stderr


def again(*words: str) -> tuple[int, str]:
    """Run this proof in another Python with these arguments; as ``command``."""
    script = os.environ.get(TRACER) or os.path.abspath(sys.argv[0])  # noqa: PTH100 - no stat
    return command([sys.executable, "-B", "-W", "ignore", script, *words])


def nvcc(source: Path, target: str, *flags: str) -> tuple[int, str, str]:
    """Compile a CUDA source for ``sm_<target>``; exit code, output, and the PTX that was made."""
    kept = source.with_name(f"{source.stem}-{target}")
    kept.mkdir()
    argv: list[str | Path] = [cuda_home() / "bin/nvcc", "-std=c++17", "-w", "-cubin", *flags]
    argv += [f"-gencode=arch=compute_{target},code=sm_{target}", "--keep", "--keep-dir", kept]
    code, said = command([*argv, "-o", kept / "probe.cubin", source.name], source.parent)
    return code, said, "".join(path.read_text(errors="replace") for path in kept.glob("*.ptx"))


def first_error(output: str) -> str:
    """The line of a compiler's output that says most, without the file that it names."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if re.search("error|not supported", line, re.IGNORECASE)]
    return re.sub(r".*\berror *: *", "", (errors or lines or ["no message"])[0])
