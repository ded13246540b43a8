"""A small valid matrix, for tests that change one detail of it."""

from __future__ import annotations

from pathlib import Path

from imagefactory.errors import InputError, Problem
from imagefactory.matrix import matrix

GOOD = """\
version: 1
repository: example/vllm
tags:
  - "{flavor}-vllm{vllm}-torch{torch}-py{python}"
bases:
  trixie:
    suite: trixie
    python: "3.13"
    glibc: "2.41"
    packages: [python3]
flavors:
  gb10:
    summary: DGX Spark
    base: trixie
    requirements: ["vllm=={vllm}", "torch=={torch}"]
    patches: [vllm/one]
    driver: "580.95"
    env: {A: b}
defaults:
  flavor: gb10
  platform: linux/arm64
axes:
  python: ["3.13"]
  cuda: ["13.0"]
  channel: [cu130]
zip:
  - vllm: ["0.22.1", "0.33.0"]
    torch: ["2.11.0", "2.14.0"]
include:
  - {flavor: gb10, platform: linux/amd64, python: "3.13", cuda: "13.0", channel: cu130,
     vllm: "0.23.0", torch: "2.11.0"}
exclude: []
overrides:
  - requirement: "numpy==2.3"
    when: {vllm: "0.33.0"}
    reason: a reason
"""


def write(folder: Path, old: str = "", new: str = "") -> Path:
    """Write the valid matrix, with ``old`` replaced by ``new``, to a file."""
    assert not old or GOOD.count(old) == 1, (GOOD.count(old), old)
    path = folder / "matrix.yaml"
    path.write_text(GOOD.replace(old, new) if old else GOOD, encoding="utf-8")
    return path


def changed(folder: Path, *changes: tuple[str, str]) -> Path:
    """Write the valid matrix with each pair's first text, which it has once, replaced."""
    text = GOOD
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path = folder / "matrix.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def problems(path: Path) -> list[Problem]:
    """The problems that loading ``path`` reports."""
    try:
        matrix.load(path)
    except InputError as error:
        return list(error.problems)
    return []
