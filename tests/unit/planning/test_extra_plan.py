"""Plans of extras: whatever decides the wheel's content changes its key, and nothing else does."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support import ROOT
from support.plans import deb
from support.project import project_lock, project_matrix
from support.variants import changes, wrong_keys

from imagefactory.errors import InputError
from imagefactory.locking.lock import BuiltWheel, Lock, Resolution
from imagefactory.locking.locked_sources import LockedSource
from imagefactory.matrix.cell import Cell, Extra, request_of
from imagefactory.planning import context, extra_plan, layers, render
from imagefactory.planning.wheel_plan import WheelPlan
from imagefactory.system.yamlfile import Location

GIT = "git+https://host.example/kernels@v1"
CUTLASS = "git+https://github.com/nvidia/cutlass@v4.4.2"
WHERE = Location(file="matrix.yaml", line=7)
#: What is not in the content of an extra, by the paths of `variants`, and why.
NOT_IN_AN_EXTRA = {
    r"(.*\.)?locations?\b.*": "only messages show where a value is written",
    r"cell\.(name|tags.*|requirements.*|overrides.*|indexes.*|driver_overrides.*|ref)": (
        "of an image"
    ),
    r"cell\.axes.*": "the platform and the wheels count, each by itself",
    r"cell\.flavor\.(name|summary|serve_args.*|requirements.*|driver|indexes.*|overrides.*)": (
        "of an image"
    ),
    r"cell\.flavor\.(toolchain|base\.(?!cuda_home).*|patches.*|build|extras.*)": (
        "what is locked counts"
    ),
    r"cell\.flavor\.base\.cuda_home": "a toolchain of the flavor's own wins",
    r"cell\.flavor\.env(\+|-(?!TORCH_CUDA).*|\[(?!TORCH_CUDA).*)": "of an image",
    r"extra\.(tools|source|sources\[.*)": "what is locked for it counts",
    r"resolution\.(name|created|platform|python|glibc|channel|requirements|overrides|indexes).*": (
        "the question to the resolver; its answer counts"
    ),
    r"resolution\.torch.*": "stands in the wheel of torch, whose hash counts",
    r"resolution\.wheels-": "the first is no part of torch",
    r"resolution\.wheels\[\].*": "as above",
    r"(system|tools|compilers)\.(name|platform|created|requirements|packages).*": (
        "what is locked by a hash counts"
    ),
    r"system\.(image|suite|env).*|system\.(debs|builder|compiler)\[\]\.(?!sha256).*": "as above",
    r"(tools|compilers)\.wheels\[\]\.(size|index|filename|requires).*": "as above",
    r"(source|cutlass)\.(version|size|url)": "as above",
}
IGNORED = re.compile("|".join(f"(?:{path})" for path in NOT_IN_AN_EXTRA))


def source(name: str, sha: str) -> LockedSource:
    url = "git+https://host.example/x"
    return LockedSource(
        name=name, version="0" * 40, filename=f"{sha}.tar", sha256=sha * 64, size=1, url=url
    )


@cache
def inputs() -> dict[str, Any]:
    """What is locked for an extra of a cell, a value for each part."""
    lock = project_lock()
    asked = next(
        c for c in project_matrix().cells if c.flavor.name == "gb10" and c.axes["vllm"] == "0.22.1"
    )
    compilers = lock.toolchain(asked.flavor.toolchain or "", asked.platform)
    system = lock.base(asked.flavor.base, asked.platform)
    assert compilers
    assert system
    extra = Extra(
        name="fast-sum",
        source=GIT,
        tools="tools",
        location=WHERE,
        folder="sub",
        env={"MORE": "x"},
        sources={"CUTLASS": CUTLASS},
    )
    return {
        "cell": asked,
        "extra": extra,
        "resolution": lock.find(request_of(asked)),
        "compilers": compilers,
        "tools": replace(compilers, name="tools", wheels=compilers.wheels[:1]),
        "system": replace(system, compiler=(deb("ccache"),)),
        "source": source(GIT, "a"),
        "cutlass": source(CUTLASS, "b"),
        "uv_version": "1",
    }


def plan(project: Path = ROOT, **changes: Any) -> WheelPlan:
    given = {**inputs(), **changes}
    resolution: Resolution = given["resolution"]
    cell: Cell = given["cell"]
    lock = Lock(
        created="",
        tools=(),
        resolutions=(resolution,),
        toolchains=tuple(one for one in (given["compilers"], given["tools"]) if one),
        sources=tuple(one for one in (given["source"], given["cutlass"]) if one),
        bases=(given["system"],) if given["system"] else (),
    )
    return extra_plan.compose(
        given["extra"],
        cell,
        resolution,
        lock,
        templates=(ROOT / "templates",),
        project=project,
        uv_version=given["uv_version"],
    )


def test_every_input_of_an_extra_changes_its_key_but_those_that_are_not_in_it() -> None:
    assert wrong_keys(lambda **more: plan(**more).key, inputs(), IGNORED) == []


def test_an_input_that_is_not_in_an_extra_exists() -> None:
    paths = [path for path, *_ in changes(inputs())]
    assert [rule for rule in NOT_IN_AN_EXTRA if not any(re.fullmatch(rule, p) for p in paths)] == []


@pytest.mark.parametrize("name", ["torch", "sympy", "nvidia-nccl-cu13"])
def test_all_of_torch_is_in_the_key_and_vllm_is_not(name: str) -> None:
    def key(changed: str) -> str:
        old = inputs()["resolution"]
        wheels = [replace(w, sha256="c" * 64) if w.name == changed else w for w in old.wheels]
        assert tuple(wheels) != old.wheels
        return plan(resolution=replace(old, wheels=tuple(wheels))).key

    assert key(name) != plan().key
    assert key("vllm") == plan().key


def test_a_file_in_a_folder_and_the_user_s_setup_are_in_the_key(tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    extra = replace(inputs()["extra"], source="./kernels", setup="setup.py", sources={})
    keys = set()
    for name in ("kernels/a.cu", "setup.py", "kernels/b.cu"):
        (tmp_path / "setup.py").touch()
        (tmp_path / name).write_text("x")
        keys.add(plan(tmp_path, extra=extra).key)
    assert len(keys) == 3
    assert plan(tmp_path, extra=extra).files["job/setup.py"] == b"x"


def test_an_extra_has_all_that_it_is_built_with_and_runs_on_its_own_platform() -> None:
    made, given = plan(), inputs()
    assert (made.name, made.title, made.version, made.where) == ("fast-sum", "fast-sum", "", WHERE)
    assert (made.platform, made.compiles) == (given["cell"].platform, True)
    assert (made.official, made.ref, made.steps, made.beside) == (
        *(None, None, ()),
        given["resolution"],
    )
    assert [part.file for part in made.parts] == ["source-a.tar", "CUTLASS-b.tar"]
    assert made.wheels.keys() == {"tools", "torch", "toolchain"}
    assert {"torch", "nvidia-cublas"} <= {wheel.name for wheel in made.wheels["torch"]}
    assert made.files.keys() == {
        *("Dockerfile", "job/job.json", "job/sources.json"),
        *(f"requirements/{name}.txt" for name in ("tools", "torch", "toolchain")),
        *(f"factory/{name}" for name in context.PROGRAMS["extra"]),
    }
    assert json.loads(made.files["job/job.json"]) == {
        "cuda": "/opt/cuda",
        "folder": "sub",
        "env": {"TORCH_CUDA_ARCH_LIST": "12.1a", "MORE": "x"},
        "sources": ["CUTLASS"],
    }
    assert json.loads(made.files["job/sources.json"]) == {
        "": {"file": "source-a.tar", "inside": ""},
        "CUTLASS": {"file": "CUTLASS-b.tar", "inside": ""},
    }


def test_without_a_toolchain_there_is_no_cuda_but_that_of_the_base() -> None:
    cell = inputs()["cell"]
    plain = replace(cell, flavor=replace(cell.flavor, toolchain=None))
    made = plan(cell=plain)
    assert made.wheels.keys() == {"tools", "torch"}
    assert "toolchain" not in made.files["Dockerfile"].decode()
    job = json.loads(made.files["job/job.json"])
    assert (job["cuda"], job["env"]) == ("", {"MORE": "x"})
    base = replace(cell.flavor.base, cuda_home="/usr/local/cuda")
    system = replace(inputs()["system"], name=base.name)
    own = replace(plain, flavor=replace(plain.flavor, base=base))
    job = json.loads(plan(cell=own, system=system).files["job/job.json"])
    assert (job["cuda"], job["env"]["TORCH_CUDA_ARCH_LIST"]) == ("/usr/local/cuda", "12.1a")


def test_the_dockerfile_can_be_reviewed_and_no_step_has_a_network() -> None:
    rows = plan().files["Dockerfile"].decode().splitlines()
    assert len(rows) < 50
    assert max(map(len, rows)) <= render.WIDTH
    text = "\n".join(rows)
    assert text.count("RUN") == text.count("--network=none") == 2


@pytest.mark.parametrize(
    ("absent", "says"),
    [
        ("source", f"lacks {GIT} (source)"),
        ("cutlass", f"lacks {CUTLASS} (CUTLASS)"),
        ("tools", "lacks toolchain tools for linux/arm64, which builds fast-sum"),
        ("compilers", "lacks toolchain cuda13.0 for linux/arm64"),
        ("system", "lacks the compilers of base trixie for linux/arm64"),
    ],
)
def test_what_the_lock_lacks_is_one_error_with_the_line_of_the_extra(
    absent: str, says: str
) -> None:
    with pytest.raises(InputError) as caught:
        plan(ROOT, **{absent: None})
    (problem,) = caught.value.problems
    assert (problem.code, problem.where) == ("lock-uncovered", str(WHERE))
    assert says in problem.what
    assert "imagefactory lock" in problem.fix


@pytest.mark.parametrize(
    ("field", "code"), [("setup", "extra-setup"), ("source", "no-sources"), ("name", "extra-twice")]
)
def test_what_is_not_there_or_there_twice_is_one_error_with_the_line_of_the_extra(
    field: str, code: str, tmp_path: Path
) -> None:
    values = {"setup": "no/setup.py", "source": "./nothing", "name": "torch"}
    extra = replace(inputs()["extra"], **{field: values[field]})
    with pytest.raises(InputError) as caught:
        plan(tmp_path, extra=extra)
    (problem,) = caught.value.problems
    assert (problem.code, problem.where) == (code, str(WHERE))


@pytest.mark.parametrize("size", [9, layers.LARGE])
def test_extras_are_a_layer_of_their_own_below_that_of_vllm_which_patches_change(size: int) -> None:
    old: Resolution = inputs()["resolution"]
    torch = old.wheel("torch")
    assert torch
    wheel = replace(torch, name="fast-sum", size=size, index="wheelhouse")
    built = BuiltWheel(key="k", platform=old.platform, beside=torch.sha256, wheel=wheel)
    before, after = layers.split(old), layers.split(old.with_built(built))
    (extras,) = [one for one in after if one.name == "extras"]
    assert (extras.group, extras.wheels) == ("extras", (wheel,))
    assert [one for one in after if one is not extras] == before
    assert "vllm" in {one.name for one in after[-1].wheels}
