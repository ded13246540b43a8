"""Keys of wheels: whatever decides a wheel's content changes its key, and nothing else does."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from support import ROOT
from support.plans import deb
from support.project import project_lock, project_matrix, stock_patches
from support.variants import changes, wrong_keys

from imagefactory.locking.lock import Lock, Resolution
from imagefactory.locking.locked_sources import LockedSource
from imagefactory.matrix.cell import Cell, SourceBuild, request_of
from imagefactory.patching import catalog
from imagefactory.planning import context, wheel_plan
from imagefactory.planning.layers import CUDA_TORCH, group_of
from imagefactory.planning.wheel_plan import WheelPlan
from imagefactory.system.yamlfile import Location

CUTLASS = "git+https://github.com/nvidia/cutlass@v4.4.2"
#: What is not in the content of a wheel, by the paths of `variants`, and why.
NOT_IN_A_WHEEL = {
    r"(.*\.)?locations?\b.*": "only messages show where a value is written",
    r"cell\.(name|tags.*|requirements.*|overrides.*|indexes.*|driver_overrides.*)": "of an image",
    r"cell\.axes.*": "the version, the platform and the wheels count, each by itself",
    r"cell\.flavor\.(name|summary|serve_args.*|requirements.*|driver|indexes.*|overrides.*)": (
        "of an image"
    ),
    r"cell\.flavor\.(toolchain|build\.tools|base\..*)": "what is locked for it counts",
    r"cell\.flavor\.(patches.*|build|extras.*)": "the series counts, and whether a wheel is built",
    r"cell\.flavor\.env(\+|-(?!TORCH_CUDA).*|\[(?!TORCH_CUDA).*)": "of an image",
    r"resolution\.(name|created|platform|python|glibc|channel|requirements|overrides|indexes).*": (
        "the question to the resolver; its answer counts"
    ),
    r"resolution\.wheels-": "the first is no part of torch",
    r"resolution\.wheels\[\].*": "as above",
    r"(system|tools|compilers)\.(name|platform|created|requirements|packages).*": (
        "what is locked by a hash counts"
    ),
    r"system\.(image|suite|env).*|system\.(debs|builder|compiler)\[\]\.(?!sha256).*": "as above",
    r"(tools|compilers)\.wheels\[\]\.(size|index|filename|requires).*": "as above",
    r"(source|cutlass)\.(version|size|url)": "as above",
}
IGNORED = re.compile("|".join(f"(?:{path})" for path in NOT_IN_A_WHEEL))


@cache
def cell() -> Cell:
    (found, *_) = [
        c for c in project_matrix().cells if c.flavor.name == "gb10" and c.axes["vllm"] == "0.22.1"
    ]
    build = SourceBuild(
        binaries="compiled",
        tools="tools",
        extensions=("_C",),
        sources={"VLLM_CUTLASS_SRC_DIR": CUTLASS},
        location=Location(file="matrix.yaml", line=1),
    )
    return replace(found, flavor=replace(found.flavor, build=build, patches=()))


def source(name: str, version: str, sha: str) -> LockedSource:
    file = f"{sha}.tar"
    url = "https://host.example/x"
    return LockedSource(name=name, version=version, filename=file, sha256=sha * 64, size=1, url=url)


@cache
def inputs() -> dict[str, Any]:
    """What is locked for the wheel of the cell, a value for each part."""
    lock, asked = project_lock(), cell()
    compilers = lock.toolchain(asked.flavor.toolchain or "", asked.platform)
    system = lock.base(asked.flavor.base, asked.platform)
    assert compilers
    assert system
    return {
        "cell": asked,
        "resolution": lock.find(request_of(asked)),
        "compilers": compilers,
        "tools": replace(compilers, name="tools"),
        "system": replace(system, compiler=(deb("ccache"),)),
        "source": source("vllm", "0.22.1", "a"),
        "cutlass": source(CUTLASS, "0" * 40, "b"),
        "uv_version": "1",
    }


def plan(**changes: Any) -> WheelPlan:
    given = {**inputs(), **changes}
    resolution: Resolution = given["resolution"]
    found: Cell = given["cell"]
    lock = Lock(
        created="",
        tools=(),
        resolutions=(resolution,),
        toolchains=(given["compilers"], given["tools"]),
        sources=(given["source"], given["cutlass"]),
        bases=(given["system"],),
    )
    series = given.get("series", catalog.series(stock_patches(), found))
    made = wheel_plan.compose(
        found,
        resolution,
        series,
        lock,
        templates=(ROOT / "templates",),
        project=ROOT,
        uv_version=given["uv_version"],
    )
    assert made is not None
    return made


def test_every_input_of_a_wheel_changes_its_key_but_those_that_are_not_in_it() -> None:
    assert wrong_keys(lambda **more: plan(**more).key, inputs(), IGNORED) == []


def test_an_input_that_is_not_in_a_wheel_exists() -> None:
    paths = [path for path, *_ in changes(inputs())]
    assert [rule for rule in NOT_IN_A_WHEEL if not any(re.fullmatch(rule, p) for p in paths)] == []


@pytest.mark.parametrize("name", ["vllm", "torch", "sympy", "numpy", "nvidia-nccl-cu13"])
def test_the_official_wheel_and_all_of_torch_are_in_the_key(name: str) -> None:
    old = inputs()["resolution"]
    wheels = [replace(w, sha256="c" * 64) if w.name == name else w for w in old.wheels]
    assert tuple(wheels) != old.wheels
    assert plan(resolution=replace(old, wheels=tuple(wheels))).key != plan().key


def test_what_decides_and_what_is_made_are_those_of_the_cell() -> None:
    made, given = plan(), inputs()
    assert (made.platform, made.version, made.compiles) == (given["cell"].platform, "0.22.1", True)
    assert made.official == given["resolution"].wheel("vllm")
    assert [part.file for part in made.parts] == ["a.tar", "VLLM_CUTLASS_SRC_DIR-b.tar"]
    assert [part.sha256 for part in made.parts] == ["a" * 64, "b" * 64]
    assert made.files.keys() == {
        *("Dockerfile", "patches/series.json", "sources.json", "extensions.json"),
        *(f"requirements/{name}.txt" for name in ("tools", "torch", "toolchain")),
        *(f"factory/{name}" for name in context.PROGRAMS["compiled"]),
    }


def test_whatever_torch_requires_is_there_when_extensions_are_compiled() -> None:
    """With numpy, which torch imports if it is there, and without what only tools need."""
    wheels = {wheel.name: wheel for wheel in inputs()["resolution"].wheels}
    waiting, needed = ["torch", "numpy"], set[str]()
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed.add(name)
            texts = wheels[name].requires or ()
            waiting += [canonicalize_name(Requirement(text).name) for text in texts]
    lines = plan().files["requirements/torch.txt"].decode().splitlines()
    found = {line.partition("==")[0] for line in lines}
    cuda = {name for name in wheels if group_of(name) == CUDA_TORCH}
    assert found == (needed | cuda) - {"setuptools"}


@pytest.mark.parametrize("kind", context.PROGRAMS)
def test_the_programs_that_a_dockerfile_runs_are_in_its_context(kind: str) -> None:
    template = {"image": "Dockerfile.j2", "official": "wheel.Dockerfile.j2"}.get(
        kind, f"{kind}.Dockerfile.j2"
    )
    text = (ROOT / "templates" / template).read_text()
    run = set(re.findall(r"factory[./](\w+?)(?:\.py)?\b(?=\s)", text)) - {"factory"}
    names = {name.partition("/")[0].removesuffix(".py") for name in context.PROGRAMS[kind]}
    # a proof is run by overlay.py, and the others are imported: see test_layer.py
    assert run <= names
    imported = {"layer", "overlay", "proofkit", "archives", "simple_index"}
    if kind == "extra":  # extra.py runs all others
        imported |= {"install", "cuda_home", "sources", "compiler", "backend"}
    assert names - run <= imported
