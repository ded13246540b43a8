"""Axes of the user's own, and what rows of `include` inherit from the axes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from support.matrices import GOOD, changed, problems

from imagefactory.matrix import matrix, pins
from imagefactory.matrix.cell import request_of
from imagefactory.matrix.explain import explain
from imagefactory.matrix.matrix import Matrix
from imagefactory.matrix.select import select

INCLUDE = GOOD[GOOD.index("include:\n") : GOOD.index("exclude:")]
#: vLLM x transformers 4/5.
TRANSFORMERS: Sequence[tuple[str, str]] = (
    (INCLUDE, ""),
    ("axes:\n", 'axes:\n  transformers: ["4", "5"]\n'),
    ('"torch=={torch}"]', '"torch=={torch}", "transformers=={transformers}.*"]'),
    ("-py{python}", "-tf{transformers}"),
    (
        "overrides:\n",
        """overrides:
  - requirement: "transformers=={transformers}.*"
    when: {transformers: "5", vllm: "0.22.1"}
    reason: measured with both
""",
    ),
)


def load(folder: Path, *changes: tuple[str, str]) -> Matrix:
    return matrix.load(changed(folder, *changes))


def test_a_key_of_the_users_own_is_an_axis_for_requirements_tags_overrides_and_selections(
    tmp_path: Path,
) -> None:
    cells = load(tmp_path, *TRANSFORMERS).cells
    assert [cell.tag.rpartition(":")[2] for cell in cells] == [
        f"gb10-vllm{vllm}-torch{torch}-tf{transformers}"
        for transformers in ("4", "5")
        for vllm, torch in (("0.22.1", "2.11.0"), ("0.33.0", "2.14.0"))
    ]
    assert [cell.requirements[-1] for cell in cells[::2]] == [
        "transformers==4.*",
        "transformers==5.*",
    ]
    chosen = select(cells, ["transformers=5"])
    assert [[o.requirement for o in cell.overrides] for cell in chosen] == [
        ["transformers==5.*"],
        ["numpy==2.3"],
    ]
    assert len({request_of(cell) for cell in cells}) == 4


def test_the_name_the_pins_and_the_explanation_of_a_cell_have_the_users_own_axes(
    tmp_path: Path,
) -> None:
    cell = load(tmp_path, *TRANSFORMERS).cells[0]
    assert "-transformers4-" in cell.name
    assert cell.pins["transformers"] == "4"
    rows = {what: (value, where) for what, value, where, _ in explain(cell)}
    line = (tmp_path / "matrix.yaml").read_text().splitlines().index(
        '  transformers: ["4", "5"]'
    ) + 1
    assert rows["transformers"] == ("4", f"{tmp_path}/matrix.yaml:{line}")


def test_an_excluded_combination_of_the_users_own_axes_is_no_cell(tmp_path: Path) -> None:
    entry = 'exclude: [{when: {transformers: "5", vllm: "0.22.1"}, reason: upstream caps it}]'
    found = load(tmp_path, *TRANSFORMERS[:-1], ("exclude: []", entry))
    assert [(c.vllm, c.axes["transformers"]) for c in found.cells] == [
        ("0.22.1", "4"),
        ("0.33.0", "4"),
        ("0.33.0", "5"),
    ]


def test_two_cells_that_differ_only_in_an_axis_that_no_tag_has_are_refused(tmp_path: Path) -> None:
    changes = [change for change in TRANSFORMERS if change[0] != "-py{python}"]
    found = problems(changed(tmp_path, *changes))
    assert {(p.code, p.fix) for p in found} == {
        ("matrix-same-tag", "add {transformers} to the template")
    }


@pytest.mark.parametrize(
    ("section", "new"),
    [
        ("axes:\n", 'axes:\n  nccl: ["2.28"]\n'),
        ("defaults:\n", 'defaults:\n  nccl: "2.28"\n'),
        ("zip:\n", 'zip:\n  - {nccl: ["2.28"]}\n'),
        ("include:\n  - {", 'include:\n  - {nccl: "2.28", '),
    ],
)
def test_an_axis_that_decides_nothing_is_an_error_with_its_line(
    tmp_path: Path, section: str, new: str
) -> None:
    path = changed(tmp_path, (section, new))
    (problem,) = problems(path)
    lines = path.read_text().splitlines()
    assert "nccl" in lines[int(str(problem.where).rpartition(":")[2]) - 1]
    assert (problem.code, problem.fix.partition(" in ")[0]) == (
        "matrix-unused-axis",
        "write {nccl}",
    )


def test_a_misspelt_axis_of_the_users_own_is_answered_with_the_right_one(tmp_path: Path) -> None:
    path = changed(tmp_path, *TRANSFORMERS, ("defaults:\n", 'defaults:\n  transformer: "4"\n'))
    assert [(p.code, p.fix) for p in problems(path)] == [
        ("matrix-unknown-axis", "write 'transformers'")
    ]


def test_a_value_that_makes_a_requirement_invalid_is_reported_where_that_is_written(
    tmp_path: Path,
) -> None:
    path = changed(tmp_path, *TRANSFORMERS[:-1], ('["4", "5"]', '["4", "five beta"]'))
    found = [p for p in problems(path) if p.code == "matrix-bad-requirement"]
    assert found
    assert "transformers 'five beta'" in found[0].fix
    line = path.read_text().splitlines()[int(str(found[0].where).rpartition(":")[2]) - 1]
    assert "requirements:" in line


def test_a_name_that_no_placeholder_can_have_is_no_axis(tmp_path: Path) -> None:
    path = changed(
        tmp_path, ("axes:\n", "axes:\n  Own-Axis: [x]\n"), ("when: {", "when: {Own-Axis: x, ")
    )
    assert "matrix-bad-axis" in {p.code for p in problems(path)}


def test_an_exact_pin_by_an_own_axis_is_compared_with_upstreams_metadata(tmp_path: Path) -> None:
    changes = [
        (old, new.replace("{transformers}.*", "{transformers}")) for old, new in TRANSFORMERS[:-1]
    ]
    cells = load(tmp_path, *changes).cells
    requires = {"vllm": ["transformers<5,>=4.0"]}
    (problem,) = pins.pin_conflicts(cells[2], requires)
    assert "transformers<5,>=4.0, and 5 is pinned" in problem.what
    assert list(pins.pin_conflicts(cells[0], requires)) == []
    ranges = load(tmp_path, *TRANSFORMERS[:-1]).cells  # a range is left to the resolver
    assert list(pins.pin_conflicts(ranges[2], requires)) == []


ROW = '{platform: linux/amd64, vllm: "0.23.0", torch: "2.11.0"}'


def test_a_row_inherits_the_axes_that_have_a_single_value(tmp_path: Path) -> None:
    cell = load(tmp_path, (INCLUDE, f"include:\n  - {ROW}\n")).cells[-1]
    assert dict(cell.axes) == {
        "flavor": "gb10",
        "platform": "linux/amd64",
        "python": "3.13",
        "cuda": "13.0",
        "channel": "cu130",
        "torch": "2.11.0",
        "vllm": "0.23.0",
    }
    sections = {what: section for what, _, _, section in explain(cell)}
    assert (sections["flavor"], sections["cuda"], sections["vllm"]) == (
        "defaults",
        "axes",
        "include",
    )


def test_a_row_inherits_no_axis_with_several_values(tmp_path: Path) -> None:
    path = changed(
        tmp_path,
        (INCLUDE, f"include:\n  - {ROW}\n"),
        ('cuda: ["13.0"]', 'cuda: ["13.0", "13.1"]'),
        ('driver: "580.95"', 'driver: "595.45.04"'),
        ("-py{python}", "-cuda{cuda}"),
    )
    found = problems(path)
    assert [p.code for p in found] == ["matrix-unknown-placeholder", "matrix-no-cuda"]
    assert path.write_text(path.read_text().replace("defaults:\n", 'defaults:\n  cuda: "13.1"\n'))
    assert matrix.load(path).cells[-1].axes["cuda"] == "13.1"


def test_a_row_inherits_a_group_of_zipped_axes_only_as_a_whole(tmp_path: Path) -> None:
    one = (
        '["0.22.1", "0.33.0"]\n    torch: ["2.11.0", "2.14.0"]',
        '["0.33.0"]\n    torch: ["2.14.0"]',
    )
    row = (INCLUDE, "include:\n  - {flavor: other}\n")
    other = ("flavors:\n", "flavors:\n  other: {extends: gb10}\n")
    whole = load(tmp_path, row, one, other).cells[-1]
    assert (whole.flavor.name, whole.vllm, whole.torch) == ("other", "0.33.0", "2.14.0")
    path = changed(tmp_path, (INCLUDE, 'include:\n  - {vllm: "0.23.0"}\n'), one)
    (problem,) = problems(path)
    assert problem.code == "matrix-missing-axis"
    assert "no value for torch" in problem.what


def test_a_row_of_channel_cpu_inherits_neither_cuda_nor_flashinfer(tmp_path: Path) -> None:
    changes = [
        (INCLUDE, f"include:\n  - {ROW.replace('}', ', channel: cpu}')}\n"),
        ("axes:\n", 'axes:\n  flashinfer: ["0.6.12"]\n'),
    ]
    cell = load(tmp_path, *changes).cells[-1]
    assert cell.channel == "cpu"
    assert {"cuda", "flashinfer"}.isdisjoint(cell.axes)
    changes[0] = (INCLUDE, changes[0][1].replace("cpu}", 'cpu, cuda: "13.0"}'))
    assert "matrix-cuda-on-cpu" in {p.code for p in problems(changed(tmp_path, *changes))}
