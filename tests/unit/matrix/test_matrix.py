"""matrix.yaml: how it is read, and the errors for invalid ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import jsonschema
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import ROOT
from support.matrices import GOOD, problems, write
from support.texts import any_text

from imagefactory.matrix import matrix, pins
from imagefactory.matrix.explain import explain
from imagefactory.matrix.schema import json_schema
from imagefactory.matrix.select import select


def line_of(text: str, word: str) -> int:
    return next(number for number, line in enumerate(text.splitlines(), start=1) if word in line)


def test_zipped_axes_vary_together_and_includes_are_separate_cells(tmp_path: Path) -> None:
    cells = matrix.load(write(tmp_path)).cells
    assert [(c.axes["vllm"], c.axes["torch"], c.platform) for c in cells] == [
        ("0.22.1", "2.11.0", "linux/arm64"),
        ("0.33.0", "2.14.0", "linux/arm64"),
        ("0.23.0", "2.11.0", "linux/amd64"),
    ]


def test_every_value_has_the_location_where_it_is_written(tmp_path: Path) -> None:
    cell = matrix.load(write(tmp_path)).cells[0]
    assert cell.locations["vllm"].line == line_of(GOOD, "- vllm:")
    assert cell.locations["vllm"].section == "zip"
    assert cell.locations["platform"].section == "defaults"
    rows = {(what, value): (where, section) for what, value, where, section in explain(cell)}
    assert rows["vllm", "0.22.1"][0].endswith(f"matrix.yaml:{line_of(GOOD, '- vllm:')}")
    assert ("patch", "vllm/one") in rows


def test_every_declaration_of_a_flavor_is_explained_with_its_line(tmp_path: Path) -> None:
    path = write(tmp_path, "env: {A: b}", "env: {A: b}\n    serve_args:\n      - --one")
    lines = path.read_text().splitlines()
    found = {
        what: lines[int(where.rpartition(":")[2]) - 1].strip()
        for what, _, where, _ in explain(matrix.load(path).cells[0])
        if where
    }
    assert found["serve"] == "- --one"
    assert found["env"] == "env: {A: b}"
    assert found["driver"] == 'driver: "580.95"'
    assert found["base"] == "base: trixie"
    assert found["package"] == "packages: [python3]"
    assert found["requirement"] == 'requirements: ["vllm=={vllm}", "torch=={torch}"]'


def test_overrides_apply_only_to_matching_cells_and_keep_their_reason(tmp_path: Path) -> None:
    first, second, _ = matrix.load(write(tmp_path)).cells
    assert first.overrides == ()
    assert [(o.requirement, o.reason) for o in second.overrides] == [("numpy==2.3", "a reason")]


def test_excluded_points_are_removed_and_their_reason_is_kept(tmp_path: Path) -> None:
    entry = 'exclude: [{when: {vllm: "0.22.1"}, reason: too old}]'
    found = matrix.load(write(tmp_path, "exclude: []", entry))
    assert [c.axes["vllm"] for c in found.cells] == ["0.33.0", "0.23.0"]
    assert found.excluded[0].reason == "too old"


BAD: Sequence[tuple[str, str, str, str, str]] = [
    # old text, new text, code, text of the reported line, text of the fix
    ('python: ["3.13"]', "python: [3.13]", "matrix-not-text", "python: [3.13]", '"3.13"'),
    ('"2.11.0", "2.14.0"', '2.10, "2.14.0"', "matrix-not-text", "torch: [2.10", '"2.10"'),
    ("defaults:\n", "default:\n", "matrix-unknown-key", "default:", "'defaults'"),
    ("    summary: DGX Spark\n", "", "matrix-missing-key", "gb10:", "summary"),
    ("packages: [python3]", "packages: python3", "matrix-wrong-value", "packages", "write [a, b]"),
    ("version: 1\n", "version: 2\n", "matrix-wrong-value", "version", "kind"),
    ("version: 1\n", "version: true\n", "matrix-wrong-value", "version", "kind"),
    (
        "    driver:",
        "    base: trixie\n    driver:",
        "matrix-duplicate-key",
        "base: trixie",
        "one of them",
    ),
    ("  channel: [cu130]\n", "  chanel: [cu130]\n", "matrix-unknown-axis", "chanel", "channel"),
    ("  python: [", "  vllm: [x]\n  python: [", "matrix-axis-twice", "- vllm", "only one"),
    ('  cuda: ["13.0"]\n', "  cuda: []\n", "matrix-empty-axis", "cuda: []", "add one"),
    ('["2.11.0", "2.14.0"]', '["2.11.0"]', "matrix-uneven-zip", "- vllm", "one value per row"),
    ("base: trixie", "base: trixy", "matrix-unknown-base", "base: trixy", "trixie"),
    ("    suite: trixie\n", "", "matrix-bad-base", "trixie:", "suite: trixie"),
    (
        "    suite: trixie\n",
        "    suite: trixie\n    image: debian\n",
        "matrix-bad-base",
        "image: debian",
        "only one",
    ),
    ("suite: trixie", "suite: stable/13", "matrix-wrong-value", "suite", "kind"),
    ("packages: [python3]", "packages: [python3=3]", "matrix-bad-package", "python3=3", "alone"),
    ('driver: "580.95"', "driver: new", "matrix-bad-driver", "driver: new", "nvidia-smi"),
    ("[vllm/one]", "[one]", "matrix-bad-patch", "[one]", "project/name"),
    ('"torch=={torch}"]', '"torch=="]', "matrix-bad-requirement", "torch==", "PEP 508"),
    (
        '  - requirement: "numpy==2.3"\n',
        "  - drop: x\n    requirement: y\n",
        "matrix-bad-override",
        "drop: x",
        "exactly one",
    ),
    (
        'when: {vllm: "0.33.0"}',
        'when: {vllm: "9.9"}',
        "matrix-dead-override",
        "requirement:",
        "`when`",
    ),
    (
        "exclude: []",
        "exclude: [{when: {vllm: z}, reason: r}]",
        "matrix-dead-exclude",
        "exclude",
        "`when`",
    ),
    (
        "exclude: []",
        'exclude: [{when: {vllm: "0.22.1"}}]',
        "matrix-missing-key",
        "exclude",
        "reason",
    ),
    ("vllm{vllm}-torch{torch}-py{python}", "x", "matrix-same-tag", "tags:", "{vllm}"),
    ("-py{python}", "-{pyton}", "matrix-unknown-placeholder", "{pyton}", "python"),
    ("-py{python}", "+py{python}", "matrix-bad-tag", "tags:", "letters"),
    ("  flavor: gb10\n", "", "matrix-missing-axis", "- vllm", "`defaults`"),
    ("  flavor: gb10\n", "  flavor: gb11\n", "matrix-unknown-flavor", "flavor: gb11", "gb10"),
    (
        "platform: linux/arm64",
        "platform: linux/riscv",
        "matrix-unknown-platform",
        "linux/riscv",
        "linux/arm64",
    ),
    ('"0.22.1", "0.33.0"', '"0.22.x", "0.33.0"', "matrix-bad-version", "0.22.x", "PEP 440"),
    ('python: ["3.13"]', 'python: ["3.12"]', "matrix-python-of-base", '["3.12"]', '"3.13"'),
    ("channel: [cu130]", "channel: [cuda13]", "matrix-bad-channel", "cuda13", "cu130"),
    ("channel: [cu130]", "channel: [cpu]", "matrix-cuda-on-cpu", "cuda: [", "remove"),
    ('  cuda: ["13.0"]\n', "", "matrix-no-cuda", "channel: [", '"13.0"'),
    ("channel: [cu130]", "channel: [cu128]", "matrix-cuda-major", "cuda: [", "major"),
    ('  cuda: ["13.0"]', '  cuda: ["13.9"]', "matrix-unknown-toolkit", "13.9", "13.0"),
    ('  cuda: ["13.0"]', '  cuda: ["13.1"]', "matrix-driver-too-old", "13.1", '"13.0"'),
]


@pytest.mark.parametrize(
    ("old", "new", "code", "line", "fix"), BAD, ids=[f"{row[2]}-{n}" for n, row in enumerate(BAD)]
)
def test_a_mistake_is_reported_with_its_line_and_what_to_write_instead(
    tmp_path: Path, old: str, new: str, code: str, line: str, fix: str
) -> None:
    path = tmp_path / "matrix.yaml"
    text = GOOD.replace(old, new, 1)
    assert text != GOOD
    path.write_text(text)
    found = [problem for problem in problems(path) if problem.code == code]
    assert found, [str(problem) for problem in problems(path)]
    lines = [number for number, row in enumerate(text.splitlines(), start=1) if line in row]
    assert int(str(found[0].where).rpartition(":")[2]) in lines
    assert fix in found[0].fix


def test_all_mistakes_are_reported_at_once_in_file_order(tmp_path: Path) -> None:
    text = (
        GOOD.replace("defaults:\n", "default:\n")
        .replace('"0.22.1", "0.33.0"', "0.22, 0.33")
        .replace("version: 1\n", "")
    )
    (tmp_path / "matrix.yaml").write_text(text)
    found = problems(tmp_path / "matrix.yaml")
    assert {p.code for p in found} == {
        "matrix-unknown-key",
        "matrix-not-text",
        "matrix-missing-key",
    }
    lines = [int(str(p.where).rpartition(":")[2]) for p in found]
    assert lines == sorted(lines)
    assert len(found) >= 4


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "matrix-empty"),
        (b"a: [", "matrix-syntax"),
        (b"\xff", "matrix-encoding"),
        (b"- a", "matrix-empty"),
    ],
)
def test_a_file_that_is_not_a_matrix_is_one_clear_error(
    tmp_path: Path, data: bytes, code: str
) -> None:
    path = tmp_path / "matrix.yaml"
    path.write_bytes(data)
    assert [problem.code for problem in problems(path)] == [code]


def test_a_missing_file_is_one_clear_error(tmp_path: Path) -> None:
    assert [problem.code for problem in problems(tmp_path / "none.yaml")] == ["matrix-missing"]


def test_a_matrix_without_cells_is_an_error(tmp_path: Path) -> None:
    entry = "exclude: [{when: {flavor: gb10}, reason: all}]"
    assert "matrix-empty" in [p.code for p in problems(write(tmp_path, "exclude: []", entry))]


def test_a_duplicate_cell_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path, 'vllm: "0.23.0", torch: "2.11.0"}', 'vllm: "0.22.1", torch: "2.11.0"}')
    path.write_text(path.read_text().replace("platform: linux/amd64", "platform: linux/arm64"))
    assert "matrix-same-cell" in [p.code for p in problems(path)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(st.integers(0, len(GOOD)), st.integers(0, 40), any_text(max_size=12))
def test_any_change_to_the_text_loads_or_is_a_clear_error(
    tmp_path: Path, start: int, length: int, new: str
) -> None:
    path = tmp_path / "matrix.yaml"
    path.write_bytes((GOOD[:start] + new + GOOD[start + length :]).encode("utf-8", "surrogatepass"))
    assert all(problem.what and problem.fix for problem in problems(path))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=8)
@given(st.integers(1, 4), st.integers(1, 4))
def test_cells_are_the_product_of_the_axes_times_the_zipped_rows(
    tmp_path: Path, rows: int, others: int
) -> None:
    versions = [f"0.{n}.0" for n in range(rows)]
    flashinfer = [f"0.6.{n}" for n in range(others)]
    text = GOOD.replace('["0.22.1", "0.33.0"]', str(versions)).replace(
        '["2.11.0", "2.14.0"]', str(versions)
    )
    text = text.replace("axes:\n", f"axes:\n  flashinfer: {flashinfer}\n").replace(
        "-py{python}", "-py{python}-{flashinfer}"
    )
    text = text.replace('when: {vllm: "0.33.0"}', "when: {}")
    text = text[: text.index("include:")] + text[text.index("exclude:") :]
    path = tmp_path / "matrix.yaml"
    path.write_text(text)
    cells = matrix.load(path).cells
    assert len(cells) == rows * others
    assert [c.name for c in cells] == [c.name for c in matrix.load(path).cells]
    for cell in cells:
        assert select(cells, [cell.name]) == (cell,)


def test_a_pin_that_contradicts_upstreams_metadata_is_an_error_unless_it_is_overridden(
    tmp_path: Path,
) -> None:
    first = matrix.load(write(tmp_path)).cells[0]
    requires = {
        "vllm": [
            "torch==2.10.0",
            'other==1; extra == "x"',
            'torch==1; platform_machine == "x86_64"',
        ]
    }
    (problem,) = pins.pin_conflicts(first, requires)
    assert str(problem.where).endswith(f":{line_of(GOOD, 'torch: [')}")
    assert "vllm 0.22.1 requires torch==2.10.0, and 2.11.0 is pinned" in problem.what
    assert '"2.10.0"' in problem.fix
    override = '\n  - {requirement: "torch==2.11.0", reason: measured}'
    path = write(tmp_path, "    reason: a reason", "    reason: a reason" + override)
    assert list(pins.pin_conflicts(matrix.load(path).cells[0], requires)) == []


def test_a_local_version_satisfies_a_pin_of_the_public_version(tmp_path: Path) -> None:
    path = write(tmp_path, '"torch=={torch}"]', '"torch=={torch}+{channel}"]')
    cell = matrix.load(path).cells[0]
    assert list(pins.pin_conflicts(cell, {"vllm": ["torch==2.11.0"]})) == []


def test_the_committed_matrix_is_valid_and_its_published_schema_is_current() -> None:
    schema = json.loads((ROOT / "docs" / "matrix.schema.json").read_text())
    assert schema == json_schema()
    jsonschema.validate(yaml.safe_load((ROOT / "matrix.yaml").read_text()), schema)
    assert matrix.load(ROOT / "matrix.yaml").cells


def test_the_documented_flavor_with_a_wheel_by_url_is_valid(tmp_path: Path) -> None:
    """Loads the committed matrix with the first example of docs/wheels.md added."""
    example = yaml.safe_load(
        (ROOT / "docs/wheels.md").read_text().split("```yaml\n")[1].split("```")[0]
    )
    whole = yaml.safe_load((ROOT / "matrix.yaml").read_text())
    (text, *others) = example["flavors"]["gb10-stream"]["requirements"]
    example["flavors"]["gb10-stream"]["requirements"] = [text.replace("…", "0" * 64), *others]
    for name in ("bases", "flavors"):
        whole[name] |= example[name]
    whole["include"] += example["include"]
    (tmp_path / "matrix.yaml").write_text(yaml.safe_dump(whole))
    (cell,) = (
        one
        for one in matrix.load(tmp_path / "matrix.yaml").cells
        if one.flavor.name == "gb10-stream"
    )
    assert cell.flavor.env["VLLM_STREAM_LOADING"] == "1"
    assert " " not in cell.requirements[0].partition(" @ ")[2]


@pytest.mark.parametrize(
    ("text", "image", "suite"),
    [
        ("suite: trixie", "debian:trixie", "trixie"),
        ("image: debian:13", "debian:13", None),
        ("{image: debian:trixie-slim, bootstrap: trixie}", "debian:trixie-slim", "trixie"),
    ],
)
def test_a_base_is_a_suite_or_an_image(
    tmp_path: Path, text: str, image: str, suite: str | None
) -> None:
    lines = "".join(f"    {part}\n" for part in text.strip("{}").split(", "))
    found = matrix.load(write(tmp_path, "    suite: trixie\n", lines)).cells[0].flavor.base
    assert (found.image, found.suite) == (image, suite)
