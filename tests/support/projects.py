"""A small valid project, matrix, lock and patch, that is planned without an index or an engine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from imagefactory.locking import store
from imagefactory.locking.lock import (
    BuiltWheel,
    Lock,
    LockedOverride,
    LockedToolchain,
    Resolution,
    TorchBuild,
    Unpacker,
    Wheel,
    drivers_of,
)
from imagefactory.locking.locked_sources import LockedSource
from imagefactory.matrix import matrix
from imagefactory.matrix.cell import Cell, Request, request_of
from imagefactory.system.platforms import Platform
from support import matrices, patches
from support.plans import base_image, deb

MORE = """\
toolchains:
  tools:
    requirements: ["setuptools==80.0"]
    platforms: [linux/arm64]
indexes:
  own: {url: "https://host.example/simple"}
"""
DAY = "2026-11-20"


def write(folder: Path) -> Path:
    """Write the project to ``folder``; returns the matrix."""
    path = matrices.write(folder)
    path.write_text(path.read_text() + MORE)
    patches.make(folder)
    store.write(folder / "wheels.lock", lock_of(matrix.load(path).cells), guards=folder / "guards")
    return path


def wheel(name: str, version: str, *requires: str) -> Wheel:
    return Wheel(
        name=name,
        version=version,
        filename=f"{name}-{version}-py3-none-any.whl",
        sha256=f"{len(name):064}",
        size=1,
        index="https://pypi.org/simple",
        requires=requires,
    )


def resolution_of(cell: Cell) -> Resolution:
    """A resolution for ``cell`` that is closed under its dependencies."""
    torch = cell.axes["torch"]
    request = request_of(cell)
    return resolved(
        request,
        wheel("numpy", "2.3"),
        wheel("torch", torch),
        wheel("vllm", cell.vllm, f"torch=={torch}", "numpy>=1.0"),
        name=f"{request.platform.replace('/', '-')}-{cell.vllm}",
        torch=f"{torch}+cu130",
    )


def resolved(request: Request, *wheels: Wheel, name: str, torch: str) -> Resolution:
    """What a resolver gives for ``request``: its own values, and ``wheels``."""
    return Resolution(
        name=name,
        created=DAY,
        platform=request.platform,
        python=request.python,
        glibc=request.glibc,
        channel=request.channel,
        requirements=request.requirements,
        overrides=tuple(
            LockedOverride(requirement=o.requirement, drop=o.drop, reason=o.reason)
            for o in request.overrides
        ),
        torch=TorchBuild(version=torch, cuda="13.0"),
        wheels=wheels,
        indexes=request.indexes,
    )


def lock_of(cells: Iterable[Cell]) -> Lock:
    """A lock of all kinds of entries for ``cells``."""
    cells = list(cells)
    resolutions = tuple({(c.vllm, c.platform): resolution_of(c) for c in cells}.values())
    bases = {c.flavor.base.name: c.flavor.base for c in cells}.values()
    key, tools = "ab" * 32, wheel("setuptools", "80.0")
    return Lock(
        created=DAY,
        tools=(("imagefactory", "0.1.0"),),
        resolutions=resolutions,
        toolchains=(
            LockedToolchain(
                name="tools",
                platform=Platform.ARM64,
                requirements=("setuptools==80.0",),
                wheels=(tools,),
            ),
        ),
        sources=(
            LockedSource(
                name="vllm",
                version="0.33.0",
                filename="vllm-0.33.0.tar.gz",
                sha256=key,
                size=1,
                url="https://host.example/vllm-0.33.0.tar.gz",
            ),
        ),
        built=(
            BuiltWheel(
                key=key,
                platform=Platform.ARM64,
                replaces=resolutions[0].wheels[-1].sha256,
                wheel=replace(wheel("vllm", "0.33.0"), index="wheelhouse"),
            ),
        ),
        unpackers=tuple(Unpacker(platform=p, wheel=wheel("uv", "0.13.8")) for p in Platform),
        drivers=drivers_of(cells),
        bases=tuple(
            base_image(base, platform, deb("bash", "5.2"), suite=base.suite).locked
            for base in bases
            for platform in Platform
        ),
    )
