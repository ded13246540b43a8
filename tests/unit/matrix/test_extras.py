"""Extras: how a flavor declares wheels that are built beside vLLM, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.matrices import changed, problems

from imagefactory.matrix import matrix
from imagefactory.matrix.cell import Cell
from imagefactory.matrix.explain import explain

GIT = "git+https://host.example/kernels@v1"
TOOLS = "toolchains:\n  tools: {requirements: [wheel==1], platforms: [linux/arm64]}\nflavors:\n"
EXTRA = f"    extras:\n      fast-sum: {{source: {GIT}, tools: tools}}\n"


def write(folder: Path, extras: str = EXTRA, *changes: tuple[str, str]) -> Path:
    summary = "    summary: DGX Spark\n"
    return changed(folder, ("flavors:\n", TOOLS), (summary, summary + extras), *changes)


def cells(path: Path) -> tuple[Cell, ...]:
    return matrix.load(path).cells


def test_an_extra_is_part_of_its_flavor_with_its_line(tmp_path: Path) -> None:
    extras = (
        "    extras:\n"
        "      z-last: {source: ./folder, tools: tools}\n"
        f"      fast-sum: {{source: {GIT}, tools: tools, folder: sub/dir/, setup: my/setup.py,\n"
        "                 env: {X: y}, sources: {CUTLASS: wheel:flashinfer-python/data}}\n"
    )
    cell = cells(write(tmp_path, extras))[0]
    first, last = cell.flavor.extras
    assert (first.name, first.folder, first.setup) == ("fast-sum", "sub/dir", "my/setup.py")
    assert (first.env, first.origins) == ({"X": "y"}, (GIT, "wheel:flashinfer-python/data"))
    assert (last.name, last.folder, last.setup, last.origins) == ("z-last", "", None, ("./folder",))
    assert cell.compiles
    assert cell.origins == dict.fromkeys(first.origins, first.location) | {
        "./folder": last.location
    }
    rows = [(value, where) for what, value, where, _ in explain(cell) if what == "extra"]
    assert rows == [
        (f"fast-sum from {GIT} (sub/dir)", str(first.location)),
        ("z-last from ./folder", str(last.location)),
    ]
    assert str(first.location).endswith(":18")


def test_a_flavor_without_extras_compiles_nothing(tmp_path: Path) -> None:
    (cell, *_) = cells(write(tmp_path, ""))
    assert (cell.flavor.extras, cell.compiles, cell.origins) == ((), False, {})


def test_a_flavor_adds_its_extras_to_those_of_the_one_that_it_extends(tmp_path: Path) -> None:
    own = "  more:\n    extends: gb10\n    extras:\n      another: {source: ./a, tools: tools}\n"
    same = own.replace("another", "fast-sum")
    for text, sources in ((own, ["./a", GIT]), (same, ["./a"])):
        path = write(
            tmp_path,
            EXTRA,
            ("defaults:\n", f"{text}defaults:\n"),
            ("- {flavor: gb10,", "- {flavor: more,"),
        )
        assert [one.source for one in cells(path)[-1].flavor.extras] == sources


@pytest.mark.parametrize(
    ("old", "new", "code", "line"),
    [
        (GIT, "somewhere", "bad-origin", 17),
        ("tools: tools}", "tools: other}", "unknown-toolchain", 17),
        ("tools: tools}", "tools: tools, folder: ../x}", "bad-path", 17),
        ("tools: tools}", "tools: tools, folder: /x}", "bad-path", 17),
        ("tools: tools}", "tools: tools, setup: a/../../x}", "bad-path", 17),
        ("tools: tools}", "tools: tools, env: {PATH: /x}}", "extra-env", 17),
        ("tools: tools}", "tools: tools, sources: {HOME: ./x}}", "extra-env", 17),
        ("tools: tools}", "tools: tools, env: {A: b}, sources: {A: ./x}}", "extra-env", 17),
        ("tools: tools}", "tools: tools, sources: {A: b}}", "bad-origin", 17),
        ("      fast-sum:", "      vllm:", "extra-vllm", 17),
        ("      fast-sum:", "      torch:", "extra-twice", 17),
        ("    extras:", "    toolchain: tools\n    extras:", "extra-lacks", 18),
        ("      fast-sum:", "      Fast_Sum:", "wrong-value", 17),
        (", tools: tools}", "}", "missing-key", 17),
        ("tools: tools}", "tools: tools, patches: [a/b]}", "unknown-key", 17),
    ],
)
def test_what_cannot_be_built_is_one_error_with_its_line(
    tmp_path: Path, old: str, new: str, code: str, line: int
) -> None:
    assert EXTRA.count(old) == 1
    (found,) = problems(write(tmp_path, EXTRA.replace(old, new)))
    assert found.where
    assert (found.code, found.where.rpartition(":")[2]) == (f"matrix-{code}", str(line))
    assert found.fix


def test_the_architectures_may_be_those_of_the_extra_or_of_the_flavor(tmp_path: Path) -> None:
    toolchain = ("    driver:", "    toolchain: tools\n    driver:")
    own = EXTRA.replace("tools: tools}", "tools: tools, env: {TORCH_CUDA_ARCH_LIST: 12.1a}}")
    assert problems(write(tmp_path, own, toolchain)) == []
    flavor = ("env: {A: b}", "env: {TORCH_CUDA_ARCH_LIST: 12.1a}")
    assert problems(write(tmp_path, EXTRA, toolchain, flavor)) == []
