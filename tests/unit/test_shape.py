"""The structure of the code: the order of imports, what modules load, and their length."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
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
        "auditing",
    ),
    *(
        "building",
        "wheels",
        "verifying",
        "publishing",
        "transport",
        "inspecting",
        "reporting",
        "upkeep",
    ),
    *("memory", "launching", "cluster", "recipes", "benchmarking", "tuning"),
    *(
        "workspace",
        "opening",
        "results",
        "pipeline",
        "audits",
        "workflows",
        "transfers",
        "nightly",
        "dashboard",
    ),
    *("commands", "cli", "__main__"),
)
#: Packages without an entry module; every other one is a station, with a module of its own name.
COLLECTIONS = ("system", "inbuild", "commands")
#: A package, or the names that come from the top, or a module: lines that ruff formats, as a
#: parser takes a second for all of them.
IMPORT = re.compile(
    r"^ *(?:from imagefactory(?:\.(\w+)[.\w]*)? import (\([^)]*\)|.*)|import imagefactory\.(\w+))",
    re.MULTILINE,
)
LONGEST = 400


def modules(root: Path = PACKAGE) -> list[Path]:
    return sorted(path for path in root.rglob("*.py") if not path.name.startswith("test_"))


def room_of(path: Path, root: Path = PACKAGE) -> str:
    return path.relative_to(root).parts[0].removesuffix(".py")


def imported(path: Path) -> Iterator[str]:
    """The packages of imagefactory that a module imports, inside functions too."""
    for package, names, module in IMPORT.findall(path.read_text()):
        plain = re.sub(r"#.*| as \w+", "", names)
        yield from {package, module, *(re.findall(r"\w+", plain) if not package else ())}


def backward(root: Path = PACKAGE) -> list[str]:
    """The imports of packages that come later in the order, or are not in it."""
    found = []
    for path in modules(root):
        room = room_of(path, root)
        if room == "__init__":
            continue
        before = ORDER[: ORDER.index(room) + 1]
        late = {*imported(path)} - {*before, "", "__version__"}
        found += [f"{path.relative_to(root)} imports {other}" for other in sorted(late)]
    return found


def test_packages_import_only_packages_before_them() -> None:
    assert {room_of(path) for path in modules()} - {"__init__"} == set(ORDER)
    assert backward() == []


def test_a_backward_import_is_detected(tmp_path: Path) -> None:
    (tmp_path / "matrix").mkdir()
    late = tmp_path / "matrix" / "late.py"
    for line in (
        "from imagefactory.locking import store",
        "from imagefactory.locking.lock import Lock",
        "from imagefactory import locking",
        "from imagefactory import locking as other  # why",
        "from imagefactory import (\n        errors,  # why\n        locking,\n    )",
        "import imagefactory.locking.lock",
    ):
        late.write_text(f"import re\n\n\ndef f():\n    {line}\n    return 1\n")
        assert backward(tmp_path) == ["matrix/late.py imports locking"]


def test_every_station_has_an_entry_module_of_its_own_name() -> None:
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    stations = packages - set(COLLECTIONS)
    assert {name for name in stations if not (PACKAGE / name / f"{name}.py").is_file()} == set()


def test_no_module_is_longer_than_the_limit() -> None:
    code = [*modules(), *modules(ROOT / "benchmarks"), *modules(ROOT / "patches")]
    code += [*modules(ROOT / "templates"), ROOT / "templates/entrypoint"]
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in code}
    long = {n: length for n, length in lengths.items() if length > LONGEST}
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
    "cluster.cluster",
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
    "auditing.gpu_code",
    "memory.memory",
    "memory.picture",
    "verifying.receipt",
    "verifying.models.models",
    "publishing.tags",
    "publishing.ledger",
    "inspecting.anatomy",
    "launching.compose",
    "launching.docker",
    "launching.kubernetes",
    "launching.quadlet",
    "benchmarking.comparing",
    "benchmarking.prompts",
    "nightly.record",
    "nightly.report",
    "dashboard.comparing",
    "dashboard.history",
    "dashboard.plots",
]


@cache
def loaded() -> dict[str, set[str]]:
    """What the parts of the program load, and those before them in their list did not.

    Both lists begin in a fork of one interpreter with our smallest libraries: to start and to load
    these takes longer than all the rest.
    """
    above = "system.engine", "cli", "commands.plan", "commands.build", "verifying.verifying"
    program = f"""
import importlib, os, sys
import jinja2, packaging.requirements, pydantic, typer, yaml
wanted = {[*OUTSIDE, *HEAVY, *(f"imagefactory.commands.{name}" for name in COMMANDS)]!r}
for modules in {PURE!r}, {above!r}:
    child = os.fork()
    if child:
        if os.waitpid(child, 0)[1]:
            sys.exit("a child failed")
        continue
    seen = set()
    for name in modules:
        importlib.import_module("imagefactory." + name)
        new = ({{*wanted}} & {{*sys.modules}}) - seen
        seen |= new
        print(name, *new)
    sys.exit()
"""
    done = shell.run([sys.executable, "-c", program], quiet=True)
    assert done.ok, done.err
    return {name: set(new) for name, *new in map(str.split, done.out.splitlines())}


@pytest.mark.programs
def test_pure_modules_do_not_load_the_network_the_engine_or_the_terminal() -> None:
    assert {name for name in PURE if loaded()[name] & {*OUTSIDE}} == set()
    assert "imagefactory.system.engine" in loaded()["system.engine"]  # others would be found


@pytest.mark.programs
def test_the_build_command_does_not_load_heavy_libraries() -> None:
    heavy = {name: new & {*HEAVY} for name, new in loaded().items() if name not in PURE}
    assert {name: new for name, new in heavy.items() if new} == {"verifying.verifying": {"numpy"}}


@pytest.mark.programs
def test_an_engine_is_known_without_the_libraries_that_it_may_need() -> None:
    assert loaded()["system.engine"] & {*HEAVY} == set()


@pytest.mark.programs
def test_commands_are_loaded_only_when_they_are_called() -> None:
    called = {name: {n for n in new if ".commands." in n} for name, new in loaded().items()}
    assert called["cli"] == set()
    assert called["commands.plan"] == {"imagefactory.commands.plan"}
