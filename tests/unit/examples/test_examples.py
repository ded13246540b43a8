"""New projects: every example is a valid matrix, and nothing is overwritten."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from support.plans import all_planned, plans_of

from imagefactory.errors import InputError
from imagefactory.examples import examples
from imagefactory.examples.examples import Example
from imagefactory.matrix import matrix

COMMIT = "1234567890" * 4
FROM_GIT = '{{"url": "{}", "vcs_info": {{"vcs": "git", "commit_id": "' + COMMIT + '"}}}}'


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
    runner = workflow["jobs"]["images"]["with"]["runner"]
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


def test_a_systemd_service_runs_the_imagefactory_that_wrote_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "my venv/100%/imagefactory"
    program.parent.mkdir(parents=True)
    program.touch()
    monkeypatch.setattr("sys.argv", [str(program), "init"])
    examples.start(tmp_path / "50%", Example.CPU)
    (unit,) = (tmp_path / "50%/systemd").glob("*.service")
    assert f'\nExecStart="{tmp_path}/my venv/100%%/imagefactory" nightly ' in unit.read_text()
    assert f"\nWorkingDirectory={tmp_path}/50%%\n" in unit.read_text()


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


@pytest.mark.parametrize(
    ("direct_url", "repository"),
    [
        (FROM_GIT.format("https://github.com/me/imagefactory"), "me/imagefactory"),
        (FROM_GIT.format("https://github.com/me/imagefactory.git"), "me/imagefactory"),
        (FROM_GIT.format("ssh://git@github.com/me/my.factory.git"), "me/my.factory"),
        (FROM_GIT.format("https://example.org/me/imagefactory"), None),
        ('{"url": "file:///src", "dir_info": {"editable": true}}', None),
        (None, None),
    ],
)
def test_a_workflow_runs_the_commit_that_was_installed(
    direct_url: str | None, repository: str | None
) -> None:
    workflow = yaml.safe_load(
        examples.files(Example.GB10, direct_url)[".github/workflows/nightly.yml"]
    )
    path = ".github/workflows/images.yml"
    expected = (
        f"{repository}/{path}@{COMMIT}" if repository else f"OWNER/imagefactory/{path}@COMMIT"
    )
    assert workflow["jobs"]["images"]["uses"] == expected
    checks = examples.files(Example.GB10, direct_url)[".github/workflows/pr.yml"]
    used = f"{repository}@{COMMIT}" if repository else "OWNER/imagefactory@COMMIT"
    assert f"      - uses: {used}\n" in checks


def test_a_workflow_whose_repository_is_unknown_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = FROM_GIT.format("https://github.com/me/imagefactory")
    for name, direct_url in (("known", known), ("unknown", None)):
        monkeypatch.setattr(examples, "_direct_url", lambda found=direct_url: found)
        done = examples.start(tmp_path / name, Example.CPU)
        own = tmp_path / name / ".github/workflows"
        assert done.unfinished == (() if direct_url else (own / "nightly.yml", own / "pr.yml"))
