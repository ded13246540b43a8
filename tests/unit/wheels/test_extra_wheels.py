"""The wheel of an extra: where it is built, and whether it is what was asked for."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from support.verify_fakes import resolution

from imagefactory.errors import CheckFailedError
from imagefactory.planning.wheel_plan import WheelPlan
from imagefactory.system.platforms import Platform
from imagefactory.system.yamlfile import Location
from imagefactory.wheels import make, required

PLAN = WheelPlan(
    key="k",
    platform=Platform.ARM64,
    name="fast-sum",
    where=Location(file="matrix.yaml", line=7),
    compiles=True,
    parts=(),
    files={},
    beside=resolution(),
)


def made(folder: Path, *requires: str, name: str = "fast_sum-1.0") -> Path:
    path = folder / f"{name}-cp313-cp313-linux_aarch64.whl"
    lines = "".join(f"Requires-Dist: {line}\n" for line in requires)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(f"{name}.dist-info/METADATA", f"Name: fast_sum\n{lines}\n")
    return path


def test_what_it_requires_is_among_the_wheels_that_it_is_installed_beside(tmp_path: Path) -> None:
    required.check(PLAN, made(tmp_path, "numpy>=1", "none; extra == 'dev'"), None)
    with pytest.raises(CheckFailedError) as caught:
        required.check(PLAN, made(tmp_path, "torch>=9", "apex"), None)
    (problem,) = caught.value.problems
    assert (problem.code, problem.where) == ("extra-requires", "matrix.yaml:7")
    assert "requires apex, which has no wheel in it" in problem.what
    assert "requires torch>=9, but it has torch 2.11.0" in problem.what


def test_it_is_a_wheel_of_the_project_that_the_matrix_names(tmp_path: Path) -> None:
    with pytest.raises(CheckFailedError) as caught:
        required.check(PLAN, made(tmp_path, name="slow_sum-1.0"), None)
    (problem,) = caught.value.problems
    assert (problem.code, problem.where) == ("extra-name", "matrix.yaml:7")
    assert "call the extra slow-sum" in problem.fix


def test_a_file_of_another_wheel_is_refused_unless_it_is_the_same(tmp_path: Path) -> None:
    def wheel_of(name: str, **files: str) -> Path:
        path = tmp_path / f"{name}-1-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as file:
            for key, text in files.items():
                file.writestr(key.replace("__", "/"), text)
        return path

    others = {wheel.name: wheel_of(wheel.name) for wheel in resolution().wheels}
    others["numpy"] = wheel_of("numpy", tests__init="", numpy__core="1")

    def check(**files: str) -> None:
        required.check_files(PLAN, wheel_of("own", **files), lambda one: others[one.name])

    check(tests__init="", numpy__more="1", own="2")
    for clash in ({"numpy__core": "2"}, {"own-1.data__purelib__numpy__core": "2"}):
        with pytest.raises(CheckFailedError) as caught:
            check(**clash, own="2")
        (problem,) = caught.value.problems
        assert (problem.code, problem.where) == ("extra-files", "matrix.yaml:7")
        assert "another content: numpy/core (numpy)" in problem.what


def test_it_is_locked_beside_its_torch_with_the_version_of_its_file(tmp_path: Path) -> None:
    built = make._built_wheel(PLAN, made(tmp_path))
    torch = resolution().wheel("torch")
    assert torch
    assert (built.replaces, built.beside, built.key) == (None, torch.sha256, "k")
    assert (built.wheel.name, built.wheel.version) == ("fast-sum", "1.0")
    assert built.wheel.is_built


def test_other_sources_do_not_copy_torch_into_the_builder_once_more() -> None:
    numpy, torch, _ = resolution().wheels
    first = replace(PLAN, key="a" * 64, wheels={"torch": (torch, numpy)})
    name = make._context_name(first)
    assert name.startswith("wheel-fast-sum-")
    assert make._context_name(replace(first, key="b" * 64)) == name
    assert make._context_name(replace(first, name="other")) != name
    assert make._context_name(replace(first, wheels={"torch": (torch,)})) != name
    assert make._context_name(replace(first, wheels={})) == f"wheel-{'a' * 12}"
