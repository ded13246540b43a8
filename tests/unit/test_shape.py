"""The structure of the code: the order of imports, what modules load, and their length."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from support import ROOT

from imagefactory.commands import COMMANDS
from imagefactory.system import shell

PACKAGE = ROOT / "imagefactory"
#: The packages and top-level modules. Each may import those before it, and none after it. Wheels
#: are baked like images, so their package comes after `building`.
ORDER = (
    *(
        "errors",
        "redaction",
        "settings",
        "stock",
        "system",
        "examples",
        "inbuild",
        "matrix",
        "locking",
        "watching",
        "patching",
        "planning",
    ),
    *("building", "wheels", "verifying", "publishing", "inspecting", "upkeep"),
    *("workspace", "opening", "results", "pipeline", "workflows", "nightly", "dashboard"),
    *("commands", "cli", "__main__"),
)
#: Packages without an entry module; every other one is a station, with a module of its own name.
COLLECTIONS = ("system", "inbuild", "commands")
LONGEST = 400
#: Proofs import one file, which lies beside them in every image, and are one file each.
LONGER = {
    "imagefactory/inbuild/proofkit.py": 520,
    "patches/vllm/fp8-backend-sm121/proof.py": 450,
    "patches/vllm/gpu-memory-utilization-gb/proof.py": 420,
}


def modules(root: Path = PACKAGE) -> list[Path]:
    return sorted(path for path in root.rglob("*.py") if not path.name.startswith("test_"))


def room_of(path: Path, root: Path = PACKAGE) -> str:
    return path.relative_to(root).parts[0].removesuffix(".py")


def statements(body: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """``body`` and what is nested in it; expressions, which are most of a tree, import nothing."""
    for node in body:
        yield node
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner = getattr(node, part, ())
            yield from statements(inner if isinstance(inner, list) else ())


def imported(path: Path) -> Iterator[str]:
    """The packages of imagefactory that a module imports, inside functions too."""
    for node in statements(ast.parse(path.read_text()).body):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module == "imagefactory":
            names = [f"imagefactory.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        for name in names:
            head, _, rest = name.partition(".")
            if head == "imagefactory" and rest and rest != "__version__":
                yield rest.partition(".")[0]


def backward(root: Path = PACKAGE) -> list[str]:
    """The imports of packages that come later in the order, or are not in it."""
    found = []
    for path in modules(root):
        room = room_of(path, root)
        if room == "__init__":
            continue
        before = ORDER[: ORDER.index(room) + 1]
        late = [other for other in imported(path) if other not in before]
        found += [f"{path.relative_to(root)} imports {other}" for other in late]
    return found


def test_packages_import_only_packages_before_them() -> None:
    assert {room_of(path) for path in modules()} - {"__init__"} == set(ORDER)
    assert backward() == []


def test_a_backward_import_is_detected(tmp_path: Path) -> None:
    (tmp_path / "matrix").mkdir()
    (tmp_path / "matrix" / "late.py").write_text(
        "def f():\n    from imagefactory.locking import store\n"
    )
    assert backward(tmp_path) == ["matrix/late.py imports locking"]


def test_every_station_has_an_entry_module_of_its_own_name() -> None:
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    stations = packages - set(COLLECTIONS)
    assert {name for name in stations if not (PACKAGE / name / f"{name}.py").is_file()} == set()


def test_no_module_is_longer_than_the_limit() -> None:
    code = [*modules(), *modules(ROOT / "benchmarks"), *modules(ROOT / "patches")]
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in code}
    long = {n: length for n, length in lengths.items() if length > LONGER.get(n, LONGEST)}
    assert long == {}


OUTSIDE = (
    "requests",
    "urllib3",
    "imagefactory.system.shell",
    "imagefactory.system.engine",
    "imagefactory.system.ui",
)
#: Libraries that take 100 ms or more to load.
HEAVY = "requests", "numpy", "python_on_whales", "pypi_simple"
PURE = [
    "matrix.matrix",
    "matrix.moving_tags",
    "locking.lock",
    "locking.requirements",
    "locking.store",
    "locking.tags",
    "watching.candidates",
    "watching.edit",
    "watching.rows",
    "patching.patch",
    "patching.catalog",
    "patching.resolve_conflicts",
    "planning.layers",
    "planning.render",
    "planning.cell_plan",
    "planning.context",
    "planning.image_config",
    "planning.wheel_plan",
    "verifying.receipt",
    "verifying.tiny_model",
    "publishing.tags",
    "publishing.ledger",
    "inspecting.anatomy",
    "nightly.record",
    "nightly.report",
    "dashboard.comparing",
    "dashboard.history",
    "dashboard.plots",
]


def loads(modules: Sequence[str], wanted: Sequence[str]) -> dict[str, set[str]]:
    """Those of ``wanted`` that each of ``modules`` loads, and that those before it did not load.

    One fresh interpreter imports them one after the other, as each start takes a second.
    """
    program = f"""
import importlib, sys
seen = set()
for name in {modules!r}:
    importlib.import_module("imagefactory." + name)
    new = ({set(wanted)!r} & set(sys.modules)) - seen
    seen |= new
    print(name, *new)
"""
    done = shell.run([sys.executable, "-c", program], quiet=True)
    assert done.ok, done.err
    return {name: set(new) for name, *new in map(str.split, done.out.splitlines())}


def impure(modules: list[str]) -> list[str]:
    """Those of ``modules`` that load the network, the engine or the terminal."""
    return [name for name, loaded in loads(modules, OUTSIDE).items() if loaded]


@cache
def loaded_by_commands() -> dict[str, set[str]]:
    """The heavy libraries and the commands that the parts of the program load, in this order."""
    modules = "system.engine", "cli", "commands.plan", "commands.build", "verifying.verifying"
    return loads(modules, [*HEAVY, *(f"imagefactory.commands.{name}" for name in COMMANDS)])


def test_pure_modules_do_not_load_the_network_the_engine_or_the_terminal() -> None:
    not_pure = "locking.resolve"  # the last one shows that others would be found
    assert impure([*PURE, not_pure]) == [not_pure]


def test_the_build_command_does_not_load_heavy_libraries() -> None:
    *before, (last, heavy) = loaded_by_commands().items()
    assert {name for name, loaded in before if loaded & {*HEAVY}} == set()
    assert (last, heavy) == ("verifying.verifying", heavy | {"numpy"})


def test_an_engine_is_known_without_the_libraries_that_it_may_need() -> None:
    assert loaded_by_commands()["system.engine"] == set()


def test_commands_are_loaded_only_when_they_are_called() -> None:
    assert loaded_by_commands()["cli"] == set()
    assert loaded_by_commands()["commands.plan"] == {"imagefactory.commands.plan"}
