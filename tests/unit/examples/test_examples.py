"""New projects: every example is a valid matrix, and nothing is overwritten."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from support import ROOT
from support.plans import all_planned, plans_of

from imagefactory.errors import InputError
from imagefactory.examples import examples
from imagefactory.examples.examples import Example
from imagefactory.matrix import matrix

#: An action as ``OWNER/NAME@COMMIT # VERSION``.
PINNED = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40} # v[\d.]+")


@pytest.mark.parametrize("example", Example)
def test_the_cells_of_an_example_are_built_like_those_of_our_own_matrix(
    example: Example, tmp_path: Path
) -> None:
    examples.start(tmp_path, example)
    plans = plans_of(matrix.load(tmp_path / "matrix.yaml").cells)
    assert plans
    assert {plan.build_key for plan in plans} <= {plan.build_key for plan in all_planned()}


@pytest.mark.parametrize("example", Example)
def test_a_nightly_workflow_runs_on_the_platform_of_its_images(
    example: Example, tmp_path: Path
) -> None:
    examples.start(tmp_path, example)
    workflow = yaml.safe_load((tmp_path / ".github/workflows/nightly.yml").read_text())
    runner = workflow["jobs"]["nightly"]["runs-on"]
    (platform,) = {cell.platform for cell in matrix.load(tmp_path / "matrix.yaml").cells}
    assert runner.endswith("-arm") == (platform == "linux/arm64")


def test_a_systemd_timer_runs_the_night_of_the_project_with_options_that_exist(
    tmp_path: Path,
) -> None:
    examples.start(tmp_path / "my images", Example.CPU)
    units = {path.suffix: path.read_text() for path in (tmp_path / "my images/systemd").iterdir()}
    assert f"\nWorkingDirectory={tmp_path}/my images\n" in units[".service"]
    assert "\nExecStart=/usr/bin/env imagefactory nightly --max-minutes 300\n" in units[".service"]
    assert "\nOnCalendar=" in units[".timer"]


def test_nothing_is_written_if_there_is_a_matrix_already(tmp_path: Path) -> None:
    (tmp_path / "matrix.yaml").write_text("mine")
    with pytest.raises(InputError) as caught:
        examples.start(tmp_path, Example.CPU)
    assert [problem.code for problem in caught.value.problems] == ["init-exists"]
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [
        ("matrix.yaml", "mine")
    ]


def test_other_files_that_exist_are_kept(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("mine")
    done = examples.start(tmp_path, Example.CPU)
    assert done.kept == (tmp_path / ".gitignore",)
    assert (tmp_path / ".gitignore").read_text() == "mine"
    assert all(path.is_file() for path in done.written)


def test_the_actions_of_workflows_are_pinned_by_commit() -> None:
    workflows = [*(ROOT / ".github/workflows").glob("*.yml"), ROOT / "action.yml"]
    texts = [path.read_text() for path in workflows]
    texts += [examples.files(example)[".github/workflows/nightly.yml"] for example in Example]
    used = [line.partition("uses:")[2].strip() for text in texts for line in text.splitlines()]
    outside = [name for name in used if name and not name.startswith("./")]
    assert outside
    unpinned = [name for name in outside if not PINNED.fullmatch(name)]
    assert unpinned == []
