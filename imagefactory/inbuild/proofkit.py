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
#: What a proof may need beyond Python, as ``needs`` of its patch.yaml says.
Need = Literal["cmake", "g++", "numpy", "nvcc"]

#: Names and values that code is run with, and leaves behind.
Space = dict[str, Any]
Definition = TypeVar("Definition", ast.FunctionDef, ast.ClassDef)


class Inconclusive(Exception):  # noqa: N818 - a verdict, not an error
    """Nothing can be said on this machine, or of sources laid out like these; its text says why."""


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


class Source:
    """A Python file of the tree, whose parts can be run without the rest of it.

    Attributes:
        path: the file.
        text: its text.
        module: its syntax tree.
        definitions: functions, classes and assignments at its top level, by name; the last of each.
        names: every name that it has at module level, be it imported or defined under a condition.

    Raises Inconclusive if there is no such file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.text = read(path)
        self.module = ast.parse(self.text)
        self.definitions = {name: node for node in self.module.body for name in _defined(node)}
        self.names = {
            name for node in _statements(self.module.body) for name in _defined(node, imports=True)
        }
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
        return [(alias.asname or alias.name).partition(".")[0] for alias in node.names]
    targets = node.targets if isinstance(node, ast.Assign) else []
    targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
    return [target.id for target in targets if isinstance(target, ast.Name)]


def names_in(nodes: Iterable[ast.AST]) -> set[str]:
    """Every plain name that is used or assigned in some nodes."""
    return {n.id for node in nodes for n in ast.walk(node) if isinstance(n, ast.Name)}


def bare(node: Definition, methods: Collection[str] = ()) -> Definition:
    """A copy without decorators; of a class without bases, too, and with only these methods."""
    node = copy.deepcopy(node)
    node.decorator_list = []
    if isinstance(node, ast.ClassDef):
        functions = [each for each in node.body if isinstance(each, ast.FunctionDef)]
        node.bases, node.keywords = [], []
        node.body = [each for each in functions if each.name in methods] or [ast.Pass()]
    return node


def evaluate(expression: ast.expr, space: Space) -> object:
    """The value of an expression of the tree."""
    tree = ast.fix_missing_locations(ast.Expression(expression))
    return eval(compile(tree, "expression", "eval"), space)  # noqa: S307 - as in Source.run


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
