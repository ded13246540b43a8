"""A wheel of vLLM from its real sources, with patches in it.

For a platform that is not this machine's.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
from support.e2e import copy_project, factory

from imagefactory import opening, workflows, workspace
from imagefactory.building import contexts
from imagefactory.inbuild import overlay
from imagefactory.locking import store, wheelhouse
from imagefactory.planning import planning
from imagefactory.settings import from_environment
from imagefactory.system.archive import unpack
from imagefactory.system.engine import Engine

pytestmark = pytest.mark.e2e

FLAVOR = "gb10-wheel"
PATCHES = ("vllm/mtp-exclusion", "vllm/nvfp4-routing-sm121", "vllm/gpu-memory-utilization-gb")
TEXT = f"""\
  {FLAVOR}:
    summary: a wheel of its own
    base: trixie
    requirements: ["vllm=={{vllm}}", "torch=={{torch}}", "flashinfer-python=={{flashinfer}}"]
    patches: [{", ".join(PATCHES)}]
    driver: "580.95"
    env: {{TORCH_CUDA_ARCH_LIST: 12.1a}}
    build: {{binaries: official, tools: vllm-build}}

# Compilers, each"""
TOOLS = """\
    platforms: [linux/amd64, linux/arm64]
  vllm-build:
    requirements:
      - setuptools==80.9.0
      - setuptools-rust==1.12.0
      - setuptools-scm==9.2.2
      - wheel==0.45.1
      - packaging==25.0
    platforms: [linux/amd64]

defaults"""
CELL = (
    f"  - {{flavor: {FLAVOR}, platform: linux/arm64, python: '3.13', cuda: '13.0', "
    "channel: cu130, torch: '2.11.0', vllm: '0.22.1', flashinfer: '0.6.12'}\n\nexclude: []"
)
#: What the release's own build wrote, and lists of files with their hashes.
OWN = ("vllm/_version.py", "vllm-0.22.1.dist-info/RECORD", "vllm-0.22.1.dist-info/WHEEL")


def made(project: Path, *options: str) -> dict[str, Any]:
    done = factory("wheel", "--select", f"flavor={FLAVOR}", "--json", *options, cwd=project)
    assert done.code == 0, done.err
    (row,) = done.json
    found: dict[str, Any] = row
    return found


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = copy_project(
        tmp_path_factory.mktemp("wheel") / "project",
        ("# Compilers, each", TEXT),
        ("    platforms: [linux/amd64, linux/arm64]\n\ndefaults", TOOLS),
        ("exclude: []", CELL),
        (
            'when: {flavor: gb10, vllm: "0.22.1"}',
            f'when: {{flavor: [gb10, {FLAVOR}], vllm: "0.22.1"}}',
        ),
    )
    done = factory("lock", cwd=folder)
    assert done.code == 0, done.err
    return folder


def test_before_it_is_made_a_plan_says_what_to_do(project: Path) -> None:
    done = factory("plan", "--select", f"flavor={FLAVOR}", cwd=project)
    assert done.code == 2
    assert "wheel-not-made" in done.err
    assert "imagefactory wheel --select" in done.err


def test_it_is_the_official_wheel_but_for_the_patches(
    project: Path, engine: Engine, tmp_path: Path
) -> None:
    row = made(project)
    assert row["patches"] == dict.fromkeys(PATCHES, "needed")
    built = contents(Path(row["wheel"]))
    replaced = store.read(project / "wheels.lock").built[0].replaces
    assert replaced
    (official,) = (Path(row["wheel"]).parents[1] / replaced).glob("*.whl")
    before = contents(official)
    assert built.keys() == before.keys()
    changed = {name for name in built if built[name] != before[name]} - set(OWN)
    assert changed
    for name in changed:
        assert name.endswith(".py")
    shutil.unpack_archive(official, tmp_path / "tree", "zip")
    assert plan_route(project, tmp_path / "tree") == {name: built[name] for name in changed}


def plan_route(project: Path, tree: Path) -> dict[str, bytes]:
    """What the overlay route makes of the official wheel's tree.

    With the series as the wheel's build got it.
    """
    assert overlay.main(tree, context_of(project) / "patches", tree.with_name("changed")) == 0
    root = tree.with_name("changed")
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file()
    }


def context_of(project: Path) -> Path:
    files = workspace.find(project / "matrix.yaml", os.environ)
    inputs = opening.read(files)
    (cell,) = (cell for cell in inputs.matrix.cells if cell.flavor.name == FLAVOR)
    wanted = planning.plan_wheel(cell, inputs)
    assert wanted is not None
    return files.contexts / f"wheel-{wanted.key[:12]}"


def test_made_again_without_any_cache_by_another_builder_it_is_the_same_bytes(
    project: Path, remote: str
) -> None:
    first = made(project)
    again = made(project, "--again", "--builder", remote)
    assert (first["built"], again["built"], again["sha256"]) == (False, True, first["sha256"])


def test_in_the_image_its_patches_are_proven_once_more_and_not_laid_over(
    project: Path, tmp_path: Path
) -> None:
    wheel, context = Path(made(project)["wheel"]), tmp_path / "context"
    found = workspace.find(project / "matrix.yaml", os.environ)
    (plan,) = workflows.check(found, [f"flavor={FLAVOR}"])
    contexts.write_files(context, plan.files)
    shutil.unpack_archive(wheel, tmp_path / "tree", "zip")
    assert overlay.main(tmp_path / "tree", context / "patches", tmp_path / "changed") == 0
    assert list((tmp_path / "changed").iterdir()) == []
    rows = json.loads((tmp_path / "changed.json").read_text())
    assert {row["name"]: row["state"] for row in rows} == dict.fromkeys(PATCHES, "in the wheel")
    assert all(row["files"] for row in rows)
    pristine = store.read(project / "wheels.lock").built[0].replaces
    assert pristine
    (official,) = (wheel.parents[1] / pristine).glob("*.whl")
    shutil.unpack_archive(official, tmp_path / "pristine", "zip")
    assert overlay.main(tmp_path / "pristine", context / "patches", tmp_path / "none") == 1


@pytest.mark.large
def test_an_arm64_image_with_it_is_verified_and_made_again_is_the_same_digest(
    project: Path, engine: Engine
) -> None:
    wheel = made(project)
    done = factory("build", "--matrix", "--select", f"flavor={FLAVOR}", "--json", cwd=project)
    assert done.code == 0, done.err
    tag = f"imagefactory/vllm:{FLAVOR}-vllm0.22.1"
    try:
        found = factory("inspect", tag, "--json").json
        again = factory("rebuild", "--diff", tag, cwd=project)
    finally:
        for name in (tag, f"{tag}-torch2.11.0-cu130"):
            engine.untag(name)
    assert again.code == 0, again.err
    assert found["patches"] == dict.fromkeys(PATCHES, "in the wheel")
    assert found["hashes"]["vllm"] == wheel["sha256"]
    outcomes = {check["name"]: check["outcome"] for check in found["receipt"]["checks"]}
    assert (
        outcomes["patches-effective"]
        == outcomes["extensions-load"]
        == outcomes["wheels-hashes"]
        == "pass"
    )
    assert "fail" not in outcomes.values()


def repository_of(project: Path, folder: Path) -> tuple[Path, str]:
    """A repository of the locked sdist, tagged as the release, and of a commit after it."""
    settings = from_environment(os.environ)
    source = store.read(project / "wheels.lock").sources[0]
    with tarfile.open(
        wheelhouse.fetch(source.url, source.sha256, source.filename, settings)
    ) as tar:
        unpack(tar, folder)
    (tree,) = folder.iterdir()

    def git(*argv: str) -> str:
        who = "-c", "user.name=a", "-c", "user.email=a@b"
        command = ["git", "-C", str(tree), *who, *argv]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "--quiet", "--initial-branch=main")
    git("config", "uploadpack.allowFilter", "true")
    git("config", "pack.window", "0")  # nothing is sent over a network, so compressing is a waste
    git("add", "--force", ".")
    git("commit", "--quiet", "--message", "as released")
    git("tag", "v0.22.1")
    with (tree / "vllm/version.py").open("a") as file:
        file.write("# a change of Python\n")
    git("commit", "--quiet", "--all", "--message", "a change")
    return tree, git("rev-parse", "HEAD")


def test_from_a_git_ref_it_is_its_python_on_the_binaries_of_its_base(
    project: Path, tmp_path: Path
) -> None:
    tree, commit = repository_of(project, tmp_path)
    first = made(project)
    file = project / "matrix.yaml"
    kept = file.read_text()
    row = f"vllm: {{ref: main, base: '0.22.1', repository: 'file://{tree}'}}, flashinfer"
    try:
        file.write_text(kept.replace("vllm: '0.22.1', flashinfer", row))
        done = factory("lock", cwd=project)
        assert done.code == 0, done.err
        (ref,) = store.read(project / "wheels.lock").refs
        assert (ref.commit, ref.version) == (commit, f"0.22.2.dev1+g{commit[:9]}")
        second = made(project)
    finally:
        file.write_text(kept)
        assert factory("lock", cwd=project).code == 0
    assert second["built"]
    assert Path(second["wheel"]).name.startswith(f"vllm-{ref.version}-")
    old, new = (unversioned(Path(row["wheel"])) for row in (first, second))
    differing = {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)}
    own = {re.sub(r"vllm-[^/]+\.dist-info", "dist-info", name) for name in OWN}
    assert differing - own == {"vllm/version.py", "dist-info/METADATA"}


def unversioned(wheel: Path) -> dict[str, bytes]:
    """The files of a wheel, under names without its version."""
    files = contents(wheel).items()
    return {re.sub(r"vllm-[^/]+\.dist-info", "dist-info", name): data for name, data in files}


def test_a_patch_that_does_not_apply_stops_the_wheel_and_nothing_is_locked(project: Path) -> None:
    before = (project / "wheels.lock").read_bytes()
    kept = {
        path: path.read_text() for path in (project / "patches/vllm/mtp-exclusion").glob("*.diff")
    }
    try:
        for path, text in kept.items():
            path.write_text(text.replace("\n     ", "\n     #"))
        done = factory("wheel", "--select", f"flavor={FLAVOR}", cwd=project)
        assert done.code == 1
        assert "patch vllm/mtp-exclusion: conflict" in done.err
    finally:
        for path, text in kept.items():
            path.write_text(text)
    assert (project / "wheels.lock").read_bytes() == before
