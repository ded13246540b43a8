"""The wheel, installed into an empty environment and used in an empty directory."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest
import uv
from support import ROOT
from support.e2e import Completed, factory

from imagefactory.planning.image_config import LABEL
from imagefactory.system.engine import Engine

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the repository's files."""
    source, out = (tmp_path_factory.mktemp(name) for name in ("source", "dist"))
    for name in ("imagefactory", "patches", "recipes", "templates", "scripts"):
        shutil.copytree(ROOT / name, source / name)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    must(uv.find_uv_bin(), "build", "--wheel", "--quiet", "--out-dir", str(out), str(source))
    (found,) = out.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def program(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The installed program; nothing of the repository is on its path."""
    home = tmp_path_factory.mktemp("installed") / "venv"
    must(uv.find_uv_bin(), "venv", "--quiet", "--python", sys.executable, str(home))
    python = str(home / "bin" / "python")
    same = f"uv=={version('uv')}"  # which is in the build key
    must(uv.find_uv_bin(), "pip", "install", "--quiet", "--python", python, str(wheel), same)
    return home / "bin" / "imagefactory"


@pytest.fixture
def folder(tmp_path: Path, program: Path) -> Path:
    """A new project with the cpu example."""
    assert use(program, tmp_path, "init", "--from", "cpu").code == 0
    return tmp_path


def must(*argv: str) -> None:
    subprocess.run(argv, check=True, capture_output=True)


def use(program: Path, folder: Path, *argv: str) -> Completed:
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(program), *argv], cwd=folder, env=environ, capture_output=True, text=True, check=False
    )
    return Completed(done.returncode, done.stdout, done.stderr)


def test_the_wheel_has_the_stock_files_and_no_tests(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    stock = {
        str(path.relative_to(ROOT))
        for name in ("templates", "patches", "recipes")
        for path in (ROOT / name).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    data = "imagefactory/data/"
    assert {name.removeprefix(data) for name in names if name.startswith(data)} == {
        *stock,
        "scripts/engine",
    }
    assert "imagefactory/py.typed" in names
    assert [name for name in names if "/test_" in name or name.endswith(".pyc")] == []


def test_an_empty_directory_becomes_a_project_that_is_locked_planned_and_rendered(
    folder: Path, program: Path
) -> None:
    locked = use(program, folder, "lock")
    assert locked.code == 0, locked.err
    planned = use(program, folder, "plan", "--json")
    assert planned.code == 0, planned.err
    (cell,) = [row["cell"] for row in planned.json]
    rendered = use(program, folder, "render", "--out", "out")
    assert rendered.code == 0, rendered.err
    assert (folder / "out" / cell / "Dockerfile").is_file()
    assert json.loads((folder / "out" / "docker-bake.json").read_text())["target"][cell]
    checked = use(program, folder, "patch", "check", cell, "--json")
    assert checked.code == 0, checked.err
    assert [row["patch"] for row in checked.json] == ["vllm/cpu-dist-info"]


def test_an_installed_product_has_the_stock_recipes(folder: Path, program: Path) -> None:
    found = use(program, folder, "recipe", "list", "--json").json
    assert {one["name"] for one in found} == {path.stem for path in (ROOT / "recipes").iterdir()}


def test_an_installed_product_renders_what_the_repository_does(folder: Path, program: Path) -> None:
    shutil.copy(ROOT / "wheels.lock", folder)
    ours = factory("render", "--select", "flavor=cpu")
    assert use(program, folder, "render").out == ours.out
    (folder / "templates").mkdir()
    stock = (ROOT / "templates" / "Dockerfile.j2").read_text()
    (folder / "templates" / "Dockerfile.j2").write_text(f"{stock}\n# ours\n")
    assert use(program, folder, "render").out.endswith("# ours\n")


def test_the_engine_script_is_part_of_the_product(program: Path, tmp_path: Path) -> None:
    status = use(program, tmp_path, "engine", "status")
    assert status.code == 0, status.err
    assert status.out.startswith("running: ")


def test_an_installed_product_builds_the_cpu_cell(
    folder: Path, program: Path, engine: Engine, cpu_image: str
) -> None:
    shutil.copy(ROOT / "wheels.lock", folder)
    text = (folder / "matrix.yaml").read_text()
    # another name, so that there is something to build; the build cache has its layers
    (folder / "matrix.yaml").write_text(text.replace("imagefactory/vllm", "imagefactory/test"))
    assert use(program, folder, "lock").code == 0
    built = use(program, folder, "build", "--matrix", "--no-verify")
    assert built.code == 0, built.err
    made = engine.inspect_image(cpu_image.replace("/vllm:", "/test:"))
    key = f"{LABEL}.build-key"
    assert made.labels[key] == engine.inspect_image(cpu_image).labels[key]
