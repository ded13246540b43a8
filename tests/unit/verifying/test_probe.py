"""The probe as one program, run by a fresh Python on small trees that look like an image's files.

What each theme's probe finds is tested in the folder of the theme.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
from support.image_tree import ImageTree

from imagefactory.verifying import checks, probe, probe_core, probe_imports, verifying

pytestmark = pytest.mark.programs

GOOD = "def facts(context):\n    return {'manifest': dict(context.manifest)}\n"


def collect(image: ImageTree, **probes: str) -> dict[str, Any]:
    """The report of these probes alone, from a Python that knows the core only."""
    done = subprocess.run(
        [sys.executable, *verifying.PROBE_OPTIONS],
        input=program(image, **probes),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def program(image: ImageTree, **probes: str) -> str:
    """The text of a probe that consists of these alone."""
    core = Path(probe_core.__file__).read_text(encoding="utf-8")
    return f"{core}\n\nmain({probes!r}, {str(image.home)!r}, {str(image.site)!r})\n"


def test_only_the_wanted_themes_are_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "sources", lambda: {"a": "A", "b": "B"})
    assert "\nmain({'a': 'A', 'b': 'B'}, " in probe.program()
    assert "\nmain({'b': 'B'}, " in probe.program(themes=["b", "c"])


def test_every_theme_with_a_probe_reports_its_facts_and_how_long_they_took(tmp_path: Path) -> None:
    report = ImageTree(tmp_path).report()
    assert report["errors"] == {}
    themes = {path.parent.name for path in Path(checks.__path__[0]).glob("*/probe.py")}
    assert report["facts"].keys() == themes
    assert all(facts["seconds"] >= 0 for facts in report["facts"].values())


def test_an_image_without_torch_or_manifest_still_reports(tmp_path: Path) -> None:
    report = ImageTree(tmp_path).report()
    assert "No module named 'torch'" in report["facts"]["torch"]["error"]
    assert report["manifest"] is None
    assert report["python"].startswith(f"{sys.version_info.major}.{sys.version_info.minor}.")


@pytest.mark.parametrize("text", ["", "[1]", "{", "\0"])
def test_a_manifest_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    image = ImageTree(tmp_path)
    (image.home / "manifest.json").write_text(text)
    assert collect(image)["manifest"] is None


def test_a_probe_gets_the_manifest(tmp_path: Path) -> None:
    image = ImageTree(tmp_path)
    image.manifest(patches=[])
    report = collect(image, good=GOOD)
    assert report["facts"]["good"]["manifest"] == {"cell": "a-cell", "patches": []}


#: Probes that fail, and what is said about them.
BAD = {
    "divides": (
        "def facts(context):\n    return 1 / 0\n",
        "ZeroDivisionError: division by zero (checks/divides/probe.py:2)",
    ),
    "exits": (
        "def facts(context):\n    raise SystemExit(7)\n",
        "SystemExit: 7 (checks/exits/probe.py:2)",
    ),
    "imports": ("import nonesuch\n", "No module named 'nonesuch' (checks/imports/probe.py:1)"),
    "malformed": ("def facts(:\n", "SyntaxError: "),
    "empty": ("FACTS = {}\n", "has no attribute 'facts'"),
    "none": ("def facts(context):\n    return None\n", "TypeError: "),
    "path": (
        "def facts(context):\n    return {'path': context.site}\n",
        "not JSON serializable",
    ),
}


def test_probes_that_fail_lose_no_facts_but_their_own(tmp_path: Path) -> None:
    sources = {name: source for name, (source, _) in BAD.items()}
    report = collect(ImageTree(tmp_path), **sources, good=GOOD)
    assert report["errors"].keys() == BAD.keys()
    said = {name: text for name, (_, text) in BAD.items()}
    assert {n: said[n] for n, error in report["errors"].items() if said[n] not in error} == {}
    assert report["facts"].keys() == {"good"}


def test_probes_that_leave_traces_run_after_those_that_only_look(tmp_path: Path) -> None:
    order = "import sys\ndef facts(context):\n    sys.order = [*getattr(sys, 'order', []), {!r}]\n"
    source = order + "    return {{'order': sys.order, 'compiles': not sys.dont_write_bytecode}}\n"
    late = "LEAVES_TRACES = True\n"
    facts = collect(
        ImageTree(tmp_path),
        a=late + source.format("a"),
        b=source.format("b"),
        c=late + source.format("c"),
        d=source.format("d"),
    )["facts"]
    assert facts["c"]["order"] == ["b", "d", "a", "c"]
    assert {name: fact["compiles"] for name, fact in facts.items()} == {
        "a": True,
        "b": False,
        "c": True,
        "d": False,
    }


def test_what_is_on_the_module_path_is_listed_before_torch_changes_it(tmp_path: Path) -> None:
    image = ImageTree(tmp_path)
    image.write(
        "torch/__init__.py",
        "import sys, pathlib\nsys.path.append(str(pathlib.Path(__file__).parent / 'vendored'))\n"
        "class version:\n    cuda = None\n",
    )
    image.write("torch/vendored/left-1.dist-info/METADATA", "Name: left\nVersion: 1\n")
    assert image.facts("wheels")["distributions"] == []


def test_a_program_that_does_not_end_or_start_is_a_finding(tmp_path: Path) -> None:
    context = probe_core.Context(site=tmp_path, home=tmp_path, manifest={})
    sleeper = [sys.executable, "-c", "import time; time.sleep(60)"]
    assert context.run(sleeper, timeout=0.2) == {
        "code": None,
        "output": "still running after 0.2 s",
    }
    missing = "[Errno 2] No such file or directory: '/nonexistent'"
    assert context.run(["/nonexistent"], timeout=5) == {"code": None, "output": missing}
    talker = [sys.executable, "-c", "print('x' * 5000); raise SystemExit(4)"]
    assert context.run(talker, timeout=60) == {"code": 4, "output": "x" * 1999}


PARTS = {
    module.__name__: Path(str(module.__file__)).read_text(encoding="utf-8")
    for module in (probe_core, probe_imports)
} | probe.sources()


@pytest.mark.parametrize("part", PARTS)
def test_a_probe_needs_nothing_but_the_standard_library(part: str) -> None:
    tree = ast.parse(PARTS[part], feature_version=(3, 11))
    only_for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    names = {
        name.split(".")[0]
        for node in ast.walk(tree)
        if id(node) not in only_for_types
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    # torch is the subject of two themes, and may be missing
    assert names - {"torch"} <= sys.stdlib_module_names


LIAR = """
import atexit, os, sys
print("[1, 2]")
atexit.register(lambda: print("{}"))
os.write(1, b"bent")
"""


def test_what_an_image_puts_on_the_module_path_neither_bends_the_probe_nor_joins_its_report(
    tmp_path: Path,
) -> None:
    image = ImageTree(tmp_path)
    for name in ("sitecustomize.py", "usercustomize.py", "json.py", "torch.py"):
        (image.site / name).write_text(LIAR)
    (image.site / "evil.pth").write_text("import sitecustomize\n")
    loads = "def facts(context):\n    import torch\n    return {}\n"
    done = subprocess.run(
        [sys.executable, *verifying.PROBE_OPTIONS],
        input=program(image, loads=loads),
        env={"PYTHONPATH": str(image.site), "PYTHONSTARTUP": str(image.site / "json.py")},
        cwd=image.site,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert json.loads(done.stdout)["facts"].keys() == {"loads"}
    assert done.stderr.count("bent") == 1  # from torch, which the probe imports
    assert "{}" not in done.stderr  # nor does anything run at the end


def test_the_site_packages_of_a_virtual_environment_are_found_without_its_site_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("prefix", "exec_prefix", "executable"):
        monkeypatch.setattr(sys, name, getattr(sys, name))
    sys.executable = str(tmp_path / "venv/bin/python")
    outside = probe_core.site_packages()
    assert outside == Path(sysconfig.get_path("purelib"))
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv/pyvenv.cfg").write_text("home = /usr/bin\n")
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    assert probe_core.site_packages() == tmp_path / "venv/lib" / version / "site-packages"
    assert sys.prefix == str(tmp_path / "venv")
