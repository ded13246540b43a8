"""Plans of wheels: their keys, their inputs, and what they need from the lock."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support import ROOT
from support.plans import deb
from support.project import project_lock, project_matrix, stock_patches

from imagefactory import opening, workspace
from imagefactory.errors import InputError
from imagefactory.locking import store
from imagefactory.locking.lock import BuiltWheel, Lock, LockedToolchain, Resolution
from imagefactory.locking.locked_sources import LockedSource
from imagefactory.matrix.cell import Cell, SourceBuild, request_of
from imagefactory.matrix.select import select
from imagefactory.patching import catalog
from imagefactory.planning import planning, render, wheel_plan
from imagefactory.planning.context import patch_files
from imagefactory.planning.wheel_plan import Trial, WheelPlan
from imagefactory.system.platforms import Platform
from imagefactory.system.yamlfile import Location
from imagefactory.wheels import wheels
from imagefactory.wheels.make import BuildEnv, Made

CUTLASS = "wheel:flashinfer-python/flashinfer/data/cutlass"
GIT = "git+https://github.com/nvidia/cutlass@v4.4.2"


def source(name: str, version: str, sha: str) -> LockedSource:
    return LockedSource(
        name=name,
        version=version,
        filename=f"{name[:4]}.tar",
        sha256=sha * 64,
        size=1,
        url="https://host/x",
    )


@pytest.fixture(scope="module")
def lock() -> Lock:
    real = project_lock()
    tools = [
        LockedToolchain(
            name="tools", platform=p, requirements=(), wheels=real.toolchains[0].wheels[:1]
        )
        for p in (Platform.AMD64, Platform.ARM64)
    ]
    sources = (source("vllm", "0.22.1", "a"), source(GIT, "0" * 40, "b"))
    bases = tuple(replace(one, compiler=(deb("ccache"),)) for one in real.bases)
    return replace(real, toolchains=(*real.toolchains, *tools), sources=sources, bases=bases)


def cell(
    *,
    binaries: str = "compiled",
    patches: tuple[str, ...] = ("vllm/e2m1-software",),
    **fields: object,
) -> Cell:
    found = next(
        c for c in project_matrix().cells if c.flavor.name == "gb10" and c.axes["vllm"] == "0.22.1"
    )
    given = (
        {"extensions": ("_C",), "sources": {"VLLM_CUTLASS_SRC_DIR": CUTLASS}}
        if binaries == "compiled"
        else {}
    )
    build = SourceBuild(
        binaries=binaries,
        tools="tools",
        location=Location(file="matrix.yaml", line=1),
        **{**given, **fields},  # type: ignore[arg-type]
    )
    return replace(found, flavor=replace(found.flavor, build=build, patches=patches))


def resolution(lock: Lock, wanted: Cell) -> Resolution:
    found = lock.find(request_of(wanted))
    assert found is not None
    return found


def plan_of(lock: Lock, wanted: Cell, trial: Trial | None = None) -> WheelPlan:
    series = catalog.series(stock_patches(), wanted)
    made = wheel_plan.compose(
        wanted,
        resolution(lock, wanted),
        series,
        lock,
        templates=(ROOT / "templates",),
        project=ROOT,
        uv_version="1",
        trial=trial,
    )
    assert made is not None
    return made


def test_a_compiled_wheel_uses_the_compilers_torch_and_patches_of_its_cell(
    lock: Lock,
) -> None:
    made = plan_of(lock, cell())
    assert (made.compiles, made.platform) == (True, "linux/arm64")
    assert [part.name for part in made.parts] == ["", "VLLM_CUTLASS_SRC_DIR"]
    assert made.parts[1].inside == "flashinfer/data/cutlass"
    assert b"torch==2.11.0" in made.files["requirements/torch.txt"]
    assert b"vllm==" not in made.files["requirements/torch.txt"]
    assert b"nvidia-cuda-nvcc==" in made.files["requirements/toolchain.txt"]
    job = json.loads(made.files["extensions.json"])
    assert (job["archs"], job["extensions"]) == ("12.1a", ["_C"])
    assert job["sources"] == {"VLLM_CUTLASS_SRC_DIR": "/sources/VLLM_CUTLASS_SRC_DIR"}
    assert "patches/vllm/e2m1-software/proof.py" in made.files
    assert b"AS tried" not in made.files["Dockerfile"]


@pytest.mark.parametrize("binaries", ["official", "compiled"])
def test_the_dockerfile_of_a_wheel_can_be_reviewed(lock: Lock, binaries: str) -> None:
    asked = cell(binaries=binaries, patches=())
    trial = Trial(units=("*",), targets=(), count="") if binaries == "compiled" else None
    rows = plan_of(lock, asked, trial).files["Dockerfile"].decode().splitlines()
    assert len(rows) < 70
    assert max(map(len, rows)) <= render.WIDTH


def test_the_key_changes_with_everything_that_determines_the_content(
    lock: Lock, tmp_path: Path
) -> None:
    plain = cell()
    other_arch = replace(plain, flavor=replace(plain.flavor, env={"TORCH_CUDA_ARCH_LIST": "12.0f"}))
    (tmp_path / "cutlass").mkdir()
    folder = cell(sources={"VLLM_CUTLASS_SRC_DIR": str(tmp_path / "cutlass")})
    keys = [plan_of(lock, folder).key]
    (tmp_path / "cutlass/a.h").write_text("one")
    keys += [
        plan_of(lock, one).key
        for one in (plain, other_arch, folder, cell(extensions=("_C", "_moe_C")))
    ]
    keys += [
        plan_of(lock, one).key
        for one in (cell(patches=()), cell(sources={"VLLM_CUTLASS_SRC_DIR": GIT}))
    ]
    keys.append(plan_of(replace(lock, sources=(source("vllm", "0.22.1", "c"),)), plain).key)
    keys.append(plan_of(lock, cell(binaries="official", patches=())).key)
    newer = tuple(replace(one, compiler=(deb("g++"),)) for one in lock.bases)
    keys.append(plan_of(replace(lock, bases=newer), plain).key)
    assert len(set(keys)) == len(keys)
    assert plan_of(lock, cell()).key == plan_of(lock, plain).key
    official = plan_of(replace(lock, bases=()), cell(binaries="official", patches=()))
    assert official.key == plan_of(lock, cell(binaries="official", patches=())).key


def test_compilers_that_are_not_locked_are_reported_with_the_base(lock: Lock) -> None:
    for bases in (tuple(replace(one, compiler=None) for one in lock.bases), ()):
        with pytest.raises(InputError) as caught:
            plan_of(replace(lock, bases=bases), cell())
        (problem,) = caught.value.problems
        assert (problem.code, problem.fix) == ("lock-uncovered", "imagefactory lock")
        assert "the compilers of base trixie for linux/arm64" in problem.what


def test_nothing_is_installed_while_a_wheel_is_compiled(lock: Lock) -> None:
    text = plan_of(lock, cell()).files["Dockerfile"].decode()
    assert "FROM builder AS prepared" in text
    assert "apt" not in text


def test_the_compiler_is_asked_for_the_cells_extensions_and_architectures(lock: Lock) -> None:
    made = plan_of(lock, cell())
    asked = {
        "source": "/src",
        "cuda": "/opt/cuda",
        "archs": cell().flavor.env["TORCH_CUDA_ARCH_LIST"],
        "sources": {"VLLM_CUTLASS_SRC_DIR": "/sources/VLLM_CUTLASS_SRC_DIR"},
    }
    assert json.loads(made.files["extensions.json"]) == {**asked, "extensions": ["_C"]}
    files = {part.name: {"file": part.file, "inside": part.inside} for part in made.parts}
    assert json.loads(made.files["sources.json"]) == files
    trial = plan_of(lock, cell(), Trial(units=("a.cu",), targets=("sm_121a",), count="E2M1"))
    units = {"units": ["a.cu"], "targets": ["sm_121a"], "count": "E2M1"}
    assert json.loads(trial.files["units.json"]) == {**asked, **units}


def test_a_trial_adds_its_units_to_the_same_plan(lock: Lock) -> None:
    made = plan_of(lock, cell(), Trial(units=("csrc/*.cu",), targets=("sm_121a",), count="E2M1"))
    job = json.loads(made.files["units.json"])
    assert (job["units"], job["targets"], job["count"]) == (["csrc/*.cu"], ["sm_121a"], "E2M1")
    assert b"AS tried" in made.files["Dockerfile"]


@pytest.mark.parametrize(
    "wanted",
    [
        cell(sources={"VLLM_CUTLASS_SRC_DIR": "git+https://host/other@v1"}),
        cell(sources={"VLLM_CUTLASS_SRC_DIR": "wheel:no-such-wheel/x"}),
        cell(sources={"VLLM_CUTLASS_SRC_DIR": "./no-such-folder"}),
    ],
)
def test_missing_sources_are_reported_with_the_line_of_the_build(lock: Lock, wanted: Cell) -> None:
    with pytest.raises(InputError) as caught:
        plan_of(lock, wanted)
    assert caught.value.problems[0].where == "matrix.yaml:1"


def test_a_patch_of_compiled_sources_is_rejected_if_nothing_is_compiled() -> None:
    patches = stock_patches()
    with pytest.raises(InputError) as caught:
        catalog.series(patches, cell(binaries="official"))
    assert caught.value.problems[0].code == "patch-stage"
    assert [step.patch.name for step in catalog.series(patches, cell())] == ["vllm/e2m1-software"]


def test_an_image_proves_installed_patches_again_and_records_compiled_ones() -> None:
    wanted = cell(patches=("vllm/mtp-exclusion", "vllm/e2m1-software", "flashinfer/e2m1-targets"))
    names = ("vllm/mtp-exclusion", "vllm/e2m1-software")
    series = catalog.series(
        stock_patches(),
        replace(wanted, flavor=replace(wanted.flavor, patches=names)),
    )
    rows = json.loads(patch_files(series, wanted.flavor.build)["patches/series.json"])
    assert [row.get("in_wheel") for row in rows] == ["yes", None]
    assert rows[1] == {"name": "vllm/e2m1-software", "compiled": ["vllm/_C*.so"]}
    assert all(
        "in_wheel" not in row for row in json.loads(patch_files(series)["patches/series.json"])
    )


def test_the_lock_keeps_the_wheels_that_some_cell_still_needs(lock: Lock) -> None:
    wheel = lock.resolutions[0].wheels[0]
    old = [
        BuiltWheel(key=key, platform=Platform.ARM64, replaces="0" * 64, wheel=wheel)
        for key in ("one", "two")
    ]
    new = BuiltWheel(key="three", platform=Platform.ARM64, replaces="0" * 64, wheel=wheel)
    made = Made(built=new, path=Path("x"), fresh=True, patches=())
    found = wheels.with_built(replace(lock, built=tuple(old)), [made], {"two", "three"})
    assert [built.key for built in found.built] == ["three", "two"]


def test_a_wheel_is_locked_although_another_cell_of_the_matrix_has_problems(
    tmp_path: Path,
) -> None:
    for name in ("templates", "patches"):
        (tmp_path / name).symlink_to(ROOT / name)
    text = (ROOT / "matrix.yaml").read_text()
    build = "    build: {binaries: official, tools: no-lock-yet}\n    toolchain: cuda13.0\n"
    tools = (
        "toolchains:\n  no-lock-yet: {requirements: [wheel==0.45.1], platforms: [linux/amd64]}\n"
    )
    text = text.replace("    toolchain: cuda13.0\n", build, 1).replace("toolchains:\n", tools, 1)
    (tmp_path / "matrix.yaml").write_text(text)
    wheel = project_lock().resolutions[0].wheels[0]
    old, new = (
        BuiltWheel(key=key, platform=Platform.ARM64, replaces="0" * 64, wheel=wheel)
        for key in ("old", "new")
    )
    lock = replace(project_lock(), built=(old,))
    store.write(tmp_path / "wheels.lock", lock, guards=tmp_path)
    inputs = opening.read(workspace.find(tmp_path / "matrix.yaml", {}))
    (cell, *_) = select(inputs.matrix.cells, ["flavor=gb10"])
    with pytest.raises(InputError):
        planning.plan_wheel(cell, inputs)
    made = Made(built=new, path=Path("x"), fresh=True, patches=())
    found = wheels.with_built(inputs.lock, [made], wheels._wanted_keys(inputs))
    assert [built.key for built in found.built] == ["new", "old"]


def test_a_trial_of_a_cell_that_compiles_nothing_is_rejected_with_its_flavors_line() -> None:
    inputs = opening.read(workspace.find(ROOT / "matrix.yaml", {}))
    (cell,) = select(inputs.matrix.cells, ["flavor=cpu"])

    def never(*_: object) -> BuildEnv:
        raise AssertionError("nothing should be built")

    with pytest.raises(InputError) as caught:
        wheels.compile_units(cell, inputs, never, Trial(units=("*",), targets=(), count=""))
    (problem,) = caught.value.problems
    assert (problem.code, problem.where) == ("compiles-nothing", str(cell.flavor.location))
