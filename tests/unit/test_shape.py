"""The shape of the code: which way packages may import, what pure modules may load, how long."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import ROOT

from imagefactory.commands import COMMANDS
from imagefactory.system import shell

PACKAGE = ROOT / "imagefactory"
#: The packages and top-level modules. Each may import those before it, and none behind it. Wheels
#: are baked as images are, so their package comes after `building`.
ORDER = (
    *("errors", "settings", "system", "inbuild", "matrix", "locking", "patching", "planning"),
    *("building", "wheels", "verifying", "publishing", "inspecting", "upkeep"),
    *("workspace", "opening", "results", "pipeline", "commands", "cli", "__main__"),
)
#: Packages that are toolboxes; every other one is a station, with an entry module of its name.
TOOLBOXES = ("system", "inbuild", "commands")
LONGEST = 400


def modules(root: Path = PACKAGE) -> list[Path]:
    return sorted(path for path in root.rglob("*.py") if not path.name.startswith("test_"))


def room_of(path: Path, root: Path = PACKAGE) -> str:
    return path.relative_to(root).parts[0].removesuffix(".py")


def imported(path: Path) -> Iterator[str]:
    """The packages of imagefactory that a module imports, wherever in it the import is."""
    for node in ast.walk(ast.parse(path.read_text())):
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
    """The imports that do not point forward: package -> package behind it, or unknown."""
    found = []
    for path in modules(root):
        room = room_of(path, root)
        if room == "__init__":
            continue
        before = ORDER[: ORDER.index(room) + 1]
        late = [other for other in imported(path) if other not in before]
        found += [f"{path.relative_to(root)} imports {other}" for other in late]
    return found


def test_packages_import_only_what_comes_before_them() -> None:
    assert {room_of(path) for path in modules()} - {"__init__"} == set(ORDER)
    assert backward() == []


def test_an_import_that_points_backward_is_seen(tmp_path: Path) -> None:
    (tmp_path / "matrix").mkdir()
    (tmp_path / "matrix" / "late.py").write_text(
        "def f():\n    from imagefactory.locking import store\n"
    )
    assert backward(tmp_path) == ["matrix/late.py imports locking"]


def test_every_station_has_an_entry_module_of_its_own_name() -> None:
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    stations = packages - set(TOOLBOXES)
    assert {name for name in stations if not (PACKAGE / name / f"{name}.py").is_file()} == set()


def test_no_module_is_longer_than_a_person_reads_in_one_go() -> None:
    code = [*modules(), *modules(ROOT / "benchmarks"), *modules(ROOT / "patches")]
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in code}
    assert {name: length for name, length in lengths.items() if length > LONGEST} == {}


OUTSIDE = (
    "requests",
    "urllib3",
    "imagefactory.system.shell",
    "imagefactory.system.engine",
    "imagefactory.system.ui",
)
#: What takes a tenth of a second and more to load.
HEAVY = "requests", "numpy", "python_on_whales", "pypi_simple"
PURE = [
    "matrix.matrix",
    "locking.lock",
    "locking.requirements",
    "locking.store",
    "locking.tags",
    "patching.patch",
    "patching.catalog",
    "patching.settle",
    "planning.layers",
    "planning.render",
    "planning.cell_plan",
    "planning.wheel_plan",
    "verifying.receipt",
    "verifying.tiny_model",
    "inspecting.anatomy",
]


def known_to(module: str, wanted: tuple[str, ...] = OUTSIDE) -> set[str]:
    """Which of ``wanted`` a fresh interpreter has loaded once it knows ``module``."""
    program = (
        f"import imagefactory.{module}, sys; print(*sorted({set(wanted)!r} & set(sys.modules)))"
    )
    done = shell.run([sys.executable, "-c", program], quiet=True)
    assert done.ok, done.err
    return set(done.out.split())


@pytest.mark.parametrize("module", PURE)
def test_a_pure_station_knows_nothing_of_the_network_the_engine_or_the_terminal(
    module: str,
) -> None:
    assert known_to(module) == set()


def test_a_station_that_asks_an_index_is_seen_to() -> None:
    assert {"requests", "imagefactory.system.shell"} <= known_to("locking.resolve")


def test_a_build_that_finds_nothing_to_do_loads_nothing_that_only_work_needs() -> None:
    assert known_to("commands.build", HEAVY) == set()
    assert {"requests", "numpy"} <= known_to("verifying.verifying", HEAVY)


def test_an_engine_is_known_without_the_libraries_that_it_may_need() -> None:
    assert known_to("system.engine", HEAVY) == set()


def test_the_program_loads_no_command_before_it_is_asked_for() -> None:
    loaded = tuple(f"imagefactory.commands.{name}" for name in COMMANDS)
    assert known_to("cli", loaded) == set()
    assert known_to("commands.plan", loaded) == {"imagefactory.commands.plan"}
