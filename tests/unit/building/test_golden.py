"""What is written for two cells, word for word: Dockerfiles and the bake file.

After a change that is meant: REGENERATE=1 pytest tests/unit/building/test_golden.py
and read the difference.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support import ROOT
from support.index import unpacker
from support.index import wheel as make_wheel
from support.machine import settings
from support.matrices import write as write_matrix
from support.plans import STACK, base_image, deb
from support.project import stock_patches

from imagefactory.building import bakefile, bases
from imagefactory.building.bakefile import BakeOptions
from imagefactory.building.contexts import Contexts
from imagefactory.locking import wheelhouse
from imagefactory.locking.lock import (
    FIND_LINKS,
    LockedToolchain,
    Resolution,
    TorchBuild,
    Unpacker,
    Wheel,
)
from imagefactory.matrix import matrix
from imagefactory.matrix.cell import Base, Cell
from imagefactory.patching import catalog
from imagefactory.patching.patch import Step
from imagefactory.planning import cell_plan
from imagefactory.planning.cell_plan import NO_KEY, BaseImage, CellPlan
from imagefactory.planning.layers import LARGE
from imagefactory.system.platforms import Platform

GOLDEN = ROOT / "tests" / "data" / "golden"
INDEX = "https://pypi.example/simple"


def wheel(name: str, version: str, size: int = 1, index: str = INDEX) -> Wheel:
    filename = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    sha = f"{sum(name.encode()):064x}"
    return Wheel(name=name, version=version, filename=filename, sha256=sha, size=size, index=index)


def resolution(cell: Cell, torch: str, *more: Wheel) -> Resolution:
    wheels = (wheel("leaf", "1.0"), wheel("torch", torch, LARGE), wheel("vllm", cell.vllm), *more)
    return Resolution(
        name="locked",
        created="2026-11-20",
        platform=cell.platform,
        python=cell.python,
        glibc=cell.flavor.base.glibc,
        channel=cell.channel,
        requirements=cell.requirements,
        overrides=(),
        torch=TorchBuild(version=torch, cuda="13.0" if cell.channel != "cpu" else None),
        wheels=tuple(sorted(wheels, key=lambda one: one.name)),
    )


def gb10(cell: Cell, files: Path) -> tuple[CellPlan, BaseImage]:
    """A cell for another platform, with compilers and a patch, on a base of packages."""
    patches = ("vllm/mtp-exclusion",)
    cell = replace(cell, flavor=replace(cell.flavor, patches=patches))
    compilers = LockedToolchain(
        name="cuda13.0",
        platform=cell.platform,
        requirements=(),
        wheels=(wheel("nvidia-cuda-nvcc", "13.0.88"),),
    )
    base, native = (
        base_image(cell.flavor.base, platform, deb("apt"), suite="trixie")
        for platform in (cell.platform, Platform.AMD64)
    )
    sha = wheelhouse.sha_of(make_wheel(files, "triton", "3.5"))
    local = replace(wheel("triton", "3.5", index=FIND_LINKS), sha256=sha)
    locked = resolution(cell, "2.11.0+cu130", local)
    series = catalog.series(stock_patches(), cell)
    return composed(cell, locked, series, base, compilers), native


def cpu(cell: Cell, _: Path) -> tuple[CellPlan, BaseImage]:
    """A cell for the platform that builds, without compilers, on an image of a registry."""
    base: Base = replace(
        cell.flavor.base, image="ghcr.io/a/base:1", suite=None, path=("/usr/bin", "/bin")
    )
    flavor = replace(
        cell.flavor,
        name="cpu",
        summary='a $HOME of "quotes"',
        base=base,
        patches=(),
        driver=None,
        serve_args=("--dtype", "bfloat16"),
    )
    axes = {**cell.axes, "flavor": "cpu", "platform": "linux/amd64", "channel": "cpu"}
    del axes["cuda"]
    tags = ("example/vllm:cpu", "example/vllm:cpu-latest")
    cell = replace(cell, name="cpu", axes=axes, flavor=flavor, tags=tags)
    image = base_image(base, Platform.AMD64, digest=f"sha256:{'1' * 64}")
    return composed(cell, resolution(cell, "2.11.0+cpu"), (), image, None), image


def composed(
    cell: Cell,
    locked: Resolution,
    series: tuple[Step, ...],
    base: BaseImage,
    compilers: LockedToolchain | None,
) -> CellPlan:
    return cell_plan.compose(
        cell,
        locked,
        series,
        base,
        templates=(ROOT / "templates",),
        toolchain=compilers,
    )


def written(folder: Path, plan: CellPlan, native: BaseImage) -> dict[str, str]:
    """The text of each file, without what differs between machines and between builds."""
    files = folder / "files"
    uv = unpacker(files, "0.13.8")
    packed = Wheel(
        name="uv",
        version="0.13.8",
        filename=uv.name,
        sha256=wheelhouse.sha_of(uv),
        size=uv.stat().st_size,
        index=FIND_LINKS,
    )
    using = settings(folder, INDEX, "https://more.example/simple", links=(files,))
    contexts = Contexts(
        folder=folder / "contexts",
        templates=(ROOT / "templates",),
        unpackers=(Unpacker(platform=Platform.AMD64, wheel=packed),),
        settings=replace(using, ca_bundle=Path("/etc/ca.pem")),
    )
    options = BakeOptions(cache="cache.example/vllm")
    bake = bakefile.write_cells(
        contexts, [plan], {native.base.name: native}, {plan.cell.name: STACK}, options
    )
    paths = {"docker-bake.json": bake}
    paths |= {f"{path.parent.name}.Dockerfile": path for path in bake.parent.glob("*/Dockerfile")}
    # both depend on the code of programs that run in a build
    keys = [plan.build_key, plan.base.digest if plan.base.locked.suite else NO_KEY]
    found = {}
    for name, path in sorted(paths.items()):
        text = path.read_text().replace(str(folder), "FOLDER")
        for key in keys:
            text = text.replace(key, NO_KEY)
        found[name] = text
    return found


@pytest.mark.parametrize(("name", "make"), [("gb10", gb10), ("cpu", cpu)])
def test_what_is_written_for_a_cell_is_what_was_reviewed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    make: Callable[[Cell, Path], tuple[CellPlan, BaseImage]],
) -> None:
    made = {"root": "oci-layout:///made@sha256:1"}  # assembling one takes seconds
    monkeypatch.setattr(
        bases, "contexts", lambda image, *_: dict(made) if image.locked.suite else {}
    )
    plan, native = make(matrix.load(write_matrix(tmp_path)).cells[0], tmp_path / "files")
    found = written(tmp_path, plan, native)
    golden = GOLDEN / name
    if os.environ.get("REGENERATE"):
        golden.mkdir(parents=True, exist_ok=True)
        for file, text in found.items():
            (golden / file).write_text(text)
    assert found == {path.name: path.read_text() for path in sorted(golden.iterdir())}
