"""Edge cases of matrix.yaml: many mistakes at once, malformed files, subtly wrong values."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from support.matrices import changed, problems, write

from imagefactory.matrix import matrix
from imagefactory.matrix.cell import request_of

DRIVER = '    driver: "580.95"\n'


def lines_of(path: Path, code: str) -> list[int]:
    return [int(str(p.where).rpartition(":")[2]) for p in problems(path) if p.code == code]


def line_of(path: Path, word: str) -> int:
    return next(n for n, line in enumerate(path.read_text().splitlines(), start=1) if word in line)


def test_mistakes_in_the_schema_in_names_and_in_cells_are_reported_in_one_run(
    tmp_path: Path,
) -> None:
    path = changed(
        tmp_path,
        ("defaults:\n", "default:\n"),  # schema: unknown key
        ('["2.11.0", "2.14.0"]', '[2.10, "2.14.0"]'),  # schema: a number
        ("    driver:", "    base: trixie\n    driver:"),  # schema: duplicate key
        ("[vllm/one]", "[one]"),  # names
        ("exclude: []", "exclude: [{when: {vllm: z}, reason: r}]"),  # expansion
        ('cuda: ["13.0"]', 'cuda: ["13.1"]'),  # cells
        ('  - "{flavor}-vllm{vllm}-torch{torch}-py{python}"', '  - "{flavor}-{python}"'),  # tags
    )
    assert {p.code for p in problems(path)} == {
        "matrix-unknown-key",
        "matrix-not-text",
        "matrix-duplicate-key",
        "matrix-bad-patch",
        "matrix-dead-exclude",
        "matrix-driver-too-old",
        "matrix-same-tag",
    }


def test_an_exclude_that_matches_nothing_is_reported_with_its_own_line(tmp_path: Path) -> None:
    excludes = "exclude:\n  - {when: {vllm: y}, reason: r}\n  - {when: {vllm: z}, reason: r}"
    path = changed(tmp_path, ("exclude: []", excludes))
    dead = [line_of(path, "vllm: y"), line_of(path, "vllm: z")]
    assert lines_of(path, "matrix-dead-exclude") == dead


def test_a_misspelt_section_is_one_mistake_and_not_one_for_every_cell(tmp_path: Path) -> None:
    path = changed(tmp_path, ("defaults:\n", "default:\n"))
    assert [(p.code, p.fix) for p in problems(path)] == [("matrix-unknown-key", "write 'defaults'")]


def test_a_mistake_below_a_misspelt_section_is_reported_with_its_own_line(tmp_path: Path) -> None:
    path = changed(
        tmp_path, ("defaults:\n", "default:\n"), ("  platform: linux/arm64\n", "  platform: 3\n")
    )
    assert lines_of(path, "matrix-not-text") == [line_of(path, "platform: 3")]


def test_a_bad_cell_does_not_hide_the_mistakes_of_the_others(tmp_path: Path) -> None:
    path = changed(
        tmp_path, ("{flavor: gb10, platform: linux/amd64", "{flavor: gb11, platform: linux/amd64")
    )
    path.write_text(path.read_text().replace('cuda: ["13.0"]', 'cuda: ["13.1"]'))
    assert {p.code for p in problems(path)} == {"matrix-unknown-flavor", "matrix-driver-too-old"}


@pytest.mark.parametrize("text", ["a: " + "[" * 1000, "a: &a [*a]", "a: &a {b: *a}"])
def test_endless_nesting_is_one_clear_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "matrix.yaml"
    path.write_text(text)
    assert [p.code for p in problems(path)] == ["matrix-syntax"]


def test_a_number_of_thousands_of_digits_is_a_clear_error(tmp_path: Path) -> None:
    path = changed(tmp_path, ("version: 1\n", f"version: {'9' * 5000}\n"))
    assert "matrix-not-text" in {p.code for p in problems(path)}


@pytest.mark.parametrize("when", ["{vllm: 3}", '{vllm: [3, "0.22.1"]}'])
def test_a_number_in_when_is_reported_once_with_the_string_to_write(
    tmp_path: Path, when: str
) -> None:
    path = changed(tmp_path, ("exclude: []", f"exclude: [{{when: {when}, reason: r}}]"))
    found = [p for p in problems(path) if p.code != "matrix-dead-exclude"]
    assert [(p.code, p.fix) for p in found] == [("matrix-not-text", 'write "3" in quotes')]


@pytest.mark.parametrize("group", ["{}", "{flashinfer: []}"])
def test_a_zip_group_without_rows_does_not_silently_empty_the_matrix(
    tmp_path: Path, group: str
) -> None:
    path = changed(tmp_path, ("include:\n", f"  - {group}\ninclude:\n"))
    assert lines_of(path, "matrix-empty-axis") == [line_of(path, f"- {group}")]


BAD: Sequence[tuple[str, str, str, str, str]] = [
    # old text, new text, code, text of the reported line, text of the fix
    (
        'vllm: "0.23.0"',
        'vllm: "0.23.0-post2"',
        "matrix-bad-version",
        "0.23.0-post2",
        '"0.23.0.post2"',
    ),
    ('vllm: "0.23.0"', 'vllm: " 0.23.0"', "matrix-bad-version", '" 0.23.0"', '"0.23.0"'),
    ("numpy==2.3", "numpy=={platform}", "matrix-bad-requirement", "{platform}", "PEP 508"),
    (
        '"torch=={torch}"]',
        '"torch=={torch}", "x=={flavor}"]',
        "matrix-bad-requirement",
        "x==",
        "PEP 508",
    ),
    (
        'requirement: "numpy==2.3"',
        'drop: "numpy==2.3"',
        "matrix-bad-override",
        "drop:",
        "name alone",
    ),
    ("example/vllm", "example:v1", "matrix-wrong-value", "repository:", "kind"),
    (DRIVER, "", "matrix-no-driver", "gb10:", "nvidia-smi"),
    ('cuda: ["13.0"]', 'cuda: ["13.2"]', "matrix-driver-too-old", 'cuda: ["13.2"]', '"13.0"'),
    (DRIVER, '    driver: "570.1"\n', "matrix-driver-too-old", 'cuda: ["13.0"]', "older toolkit"),
]


@pytest.mark.parametrize(
    ("old", "new", "code", "line", "fix"), BAD, ids=[f"{row[2]}-{n}" for n, row in enumerate(BAD)]
)
def test_a_value_that_only_looks_right_is_reported_with_its_line_and_what_to_write(
    tmp_path: Path, old: str, new: str, code: str, line: str, fix: str
) -> None:
    path = changed(tmp_path, (old, new))
    found = [p for p in problems(path) if p.code == code]
    assert found, problems(path)
    assert f"{path}:{line_of(path, line)}" in {p.where for p in found}
    assert all(fix in p.fix for p in found)


def test_a_flavor_without_a_driver_is_reported_once_for_all_of_its_cells(tmp_path: Path) -> None:
    assert len(lines_of(write(tmp_path, DRIVER, ""), "matrix-no-driver")) == 1


@pytest.mark.parametrize(
    "name", ["registry.example:5000/a/vllm", "localhost:5000/vllm", "ghcr.io/a_b/c--d", "vllm"]
)
def test_a_repository_may_include_a_registry_and_its_port(tmp_path: Path, name: str) -> None:
    found = matrix.load(write(tmp_path, "example/vllm", name))
    assert found.cells[0].tags[0].startswith(f"{name}:gb10-")


def test_every_cell_of_a_valid_matrix_has_a_resolution_request(tmp_path: Path) -> None:
    for cell in matrix.load(write(tmp_path)).cells:
        assert request_of(cell).requirements


def test_an_exclude_removes_exactly_the_points_that_it_matches(tmp_path: Path) -> None:
    path = changed(
        tmp_path, ("exclude: []", "exclude: [{when: {platform: [linux/amd64]}, reason: r}]")
    )
    found = matrix.load(path)
    assert [c.axes["vllm"] for c in found.cells] == ["0.22.1", "0.33.0"]
    assert [dict(e.axes)["vllm"] for e in found.excluded] == ["0.23.0"]


def test_a_development_version_is_a_value_whose_plus_is_a_dash_in_tags(tmp_path: Path) -> None:
    cell, other, *_ = matrix.load(write(tmp_path, '"0.22.1"', '"0.25.1.dev12+g1234567"')).cells
    assert cell.tag == "example/vllm:gb10-vllm0.25.1.dev12-g1234567-torch2.11.0-py3.13"
    assert "vllm==0.25.1.dev12+g1234567" in request_of(cell).requirements
    assert cell.pins["vllm"] == "0.25.1.dev12+g1234567"
    assert other.tag.endswith("vllm0.33.0-torch2.14.0-py3.13")
