"""`extends`: what a base or flavor takes from another, and where that is written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import jsonschema
import pytest
import yaml
from support.matrices import changed, problems

from imagefactory.matrix import matrix
from imagefactory.matrix.cell import Cell
from imagefactory.matrix.explain import explain
from imagefactory.matrix.schema import json_schema

RDMA = """\
flavors:
  gb10-rdma:
    extends: gb10
    base: trixie-rdma
    requirements: [ray, "vllm=={vllm}.post1"]
    patches: [vllm/two]
    env: {A: other, C: d}
  gb10:
"""
BASE = "flavors:\n"
TRIXIE_RDMA = "  trixie-rdma: {extends: trixie, packages: [libibverbs1]}\nflavors:\n"


def write(folder: Path, *changes: tuple[str, str]) -> Path:
    cell = ("- {flavor: gb10,", "- {flavor: gb10-rdma,")
    return changed(folder, ("flavors:\n  gb10:\n", RDMA), (BASE, TRIXIE_RDMA), *changes, cell)


def rdma(folder: Path, *changes: tuple[str, str]) -> Cell:
    return matrix.load(write(folder, *changes)).cells[-1]


def test_packages_patches_variables_and_requirements_are_added_and_the_rest_is_replaced(
    tmp_path: Path,
) -> None:
    flavor = rdma(tmp_path).flavor
    assert (flavor.name, flavor.summary, flavor.driver) == ("gb10-rdma", "DGX Spark", "580.95")
    assert (flavor.base.name, flavor.base.image) == ("trixie-rdma", "debian:trixie")
    assert flavor.base.packages == ("libibverbs1", "python3")
    assert flavor.requirements == ("torch=={torch}", "ray", "vllm=={vllm}.post1")
    assert flavor.patches == ("vllm/one", "vllm/two")
    assert flavor.env == {"A": "other", "C": "d"}


def test_what_is_extended_stays_as_it_is(tmp_path: Path) -> None:
    first = matrix.load(write(tmp_path)).cells[0].flavor
    assert (first.name, first.base.packages) == ("gb10", ("python3",))
    assert (first.requirements, first.patches, first.env) == (
        ("vllm=={vllm}", "torch=={torch}"),
        ("vllm/one",),
        {"A": "b"},
    )


def test_an_explanation_shows_where_every_inherited_value_is_set(tmp_path: Path) -> None:
    cell = rdma(tmp_path)
    lines = (tmp_path / "matrix.yaml").read_text().splitlines()

    def at(text: str) -> str:
        (number,) = [n for n, line in enumerate(lines, start=1) if text in line]
        return f"{tmp_path}/matrix.yaml:{number}"

    rows = {(what, value): (where, section) for what, value, where, section in explain(cell)}
    gb10, own = "flavors.gb10", "flavors.gb10-rdma"
    assert rows["package", "python3"] == (at("packages: [python3]"), "bases.trixie")
    assert rows["package", "libibverbs1"] == (at("libibverbs1"), "bases.trixie-rdma")
    assert rows["requirement", "torch==2.11.0"] == (at('"torch=={torch}"'), gb10)
    assert rows["requirement", "vllm==0.23.0.post1"] == (at("{vllm}.post1"), own)
    assert rows["patch", "vllm/one"] == (at("vllm/one"), gb10)
    assert rows["patch", "vllm/two"] == (at("vllm/two"), own)
    assert rows["env", "A=other"] == (at("A: other"), own)
    assert rows["driver", "580.95"] == (at("driver:"), gb10)


def test_an_entry_may_extend_one_that_extends_another(tmp_path: Path) -> None:
    third = "  third: {extends: gb10-rdma, env: {E: f}, driver: '590.44.01'}\n  gb10:\n"
    path = write(tmp_path, ("  gb10:\n", third))
    path.write_text(path.read_text().replace("flavor: gb10-rdma,", "flavor: third,"))
    cell = matrix.load(path).cells[-1]
    assert (cell.flavor.env, cell.flavor.driver) == (
        {"A": "other", "C": "d", "E": "f"},
        "590.44.01",
    )
    sections = {value: section for _, value, _, section in explain(cell)}
    assert (sections["vllm/one"], sections["C=d"]) == ("flavors.gb10", "flavors.gb10-rdma")


BAD: Sequence[tuple[str, str, str, str, str]] = [
    # old text, new text, code, text of the reported line, text of the fix
    ("extends: gb10\n", "extends: gb11\n", "matrix-unknown-parent", "gb11", "one of gb10"),
    ("extends: trixie,", "extends: trixy,", "matrix-unknown-parent", "trixy", "one of trixie"),
    ("  gb10:\n", "  gb10:\n    extends: gb10-rdma\n", "matrix-extends-cycle", "gb10", "`extends`"),
    ("extends: trixie,", "extends: trixie-rdma,", "matrix-extends-cycle", "trixie-rdma", "remove"),
]


@pytest.mark.parametrize(("old", "new", "code", "line", "fix"), BAD)
def test_a_wrong_extends_is_one_error_with_its_line(
    tmp_path: Path, old: str, new: str, code: str, line: str, fix: str
) -> None:
    path = write(tmp_path, (old, new))
    (problem,) = problems(path)
    assert problem.code == code
    assert fix in problem.fix
    assert line in path.read_text().splitlines()[int(str(problem.where).rpartition(":")[2]) - 1]


def test_a_cycle_is_shown_whole(tmp_path: Path) -> None:
    path = write(tmp_path, ("  gb10:\n", "  gb10:\n    extends: gb10-rdma\n"))
    assert "gb10-rdma -> gb10 -> gb10-rdma" in problems(path)[0].what


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('driver: "580.95"', "driver: 580.95"),
        ("    env: {A: b}", "    env: {A: 1}"),
        ("    summary: DGX Spark\n", "    summary: [DGX Spark]\n"),
        ("patches: [vllm/one]", "patches: [one]"),
    ],
)
def test_a_mistake_in_an_inherited_value_is_reported_once_where_it_is_written(
    tmp_path: Path, old: str, new: str
) -> None:
    path = write(tmp_path, (old, new))
    (problem,) = problems(path)
    assert (
        new.strip() in path.read_text().splitlines()[int(str(problem.where).rpartition(":")[2]) - 1]
    )


def test_what_is_neither_set_nor_inherited_is_missing(tmp_path: Path) -> None:
    path = write(tmp_path, ("    summary: DGX Spark\n", ""))
    assert {(p.code, "summary" in p.fix) for p in problems(path)} == {("matrix-missing-key", True)}


def test_the_published_schema_accepts_an_entry_that_extends_another(tmp_path: Path) -> None:
    data = yaml.safe_load(write(tmp_path).read_text())
    jsonschema.validate(data, json_schema())
    del data["bases"]["trixie-rdma"]["extends"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, json_schema())
