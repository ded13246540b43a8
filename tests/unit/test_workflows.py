"""Workflows: the linters of `make check` find what is planted, and no stranger gets a Spark."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.version import Version
from support import ROOT

from imagefactory.examples import examples
from imagefactory.examples.examples import Example

pytestmark = pytest.mark.programs

WORKFLOWS = ROOT / ".github" / "workflows"
FROM_GITHUB = '{"url": "https://github.com/me/imagefactory", "vcs_info": {"commit_id": "%s"}}'
SIGNING = """\
    secrets:
      signing-key: ${{ secrets.IMAGEFACTORY_SIGNING_KEY }} # without it, receipts are unsigned
"""
#: Rule of a linter -> the workflow, what is replaced in it, and by what.
FAULTS = {
    "unpinned-uses": ("pr", "checkout@3d3c42e5aac5ba805825da76410c181273ba90b1 # v7.0.1", "checkout@v7"),
    "excessive-permissions": ("pr", "permissions:\n      contents: read\n", "permissions: write-all\n"),
    "template-injection": ("pr", ".ci/step plan-check", "echo ${{ github.event.pull_request.title }}"),
    "dangerous-triggers": ("pr", "on: pull_request\n", "on: pull_request_target\n"),
    "artipacked": ("pr", "          persist-credentials: false\n", ""),
    "secrets-inherit": ("nightly", SIGNING, "    secrets: inherit\n"),
    "expression": ("images", "inputs.gpu-tag", "inputs.gpu_tag"),
    "workflow-call": ("nightly", "      dashboard:", "      dashbord:"),
    "shellcheck": ("images", '"$RUNNER_TEMP/nightly.bundle"', "$RUNNER_TEMP/nightly.bundle"),
    "syntax-check": ("release", "timeout-minutes", "timeout-minute"),
}  # fmt: skip


def linted(folder: Path) -> dict[str, set[str]]:
    """The rules that `make check` finds broken in a repository, by the name of a workflow."""
    tools = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    found: dict[str, set[str]] = {}
    for argv in (
        ["actionlint", "-format", "{{json .}}"],
        ["zizmor", "--offline", "--quiet", "--no-progress", "--format=json", ".github"],
    ):
        program = shutil.which(argv[0], path=tools)
        assert program, f"{argv[0]} is one of the requirements in pyproject.toml: make clean check"
        done = subprocess.run(
            [program, *argv[1:]],
            cwd=folder,
            env={**os.environ, "PATH": tools},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout, done.stderr
        for row in json.loads(done.stdout):
            path = (
                row.get("filepath")
                or row["locations"][0]["symbolic"]["key"]["Local"]["verbatim_path"]
            )
            found.setdefault(Path(path).stem, set()).add(row.get("kind") or row["ident"])
    return found


def repository(folder: Path) -> Path:
    """A copy of what the linters read, with the workflows of new projects."""
    shutil.copytree(ROOT / ".github", folder / ".github")
    (folder / ".git").mkdir()
    for example in Example:
        texts = examples.files(example, FROM_GITHUB % ("1" * 40))
        for name in ("nightly", "pr"):
            text = texts[f".github/workflows/{name}.yml"]
            (folder / f".github/workflows/{example}-{name}.yml").write_text(text)
    return folder


def test_linters_pass_all_workflows_and_find_each_planted_fault(tmp_path: Path) -> None:
    workflows = repository(tmp_path) / ".github" / "workflows"
    planted = {}
    for rule, (name, old, new) in FAULTS.items():
        text = (WORKFLOWS / f"{name}.yml").read_text()
        assert old in text, rule
        (workflows / f"with-{rule}.yml").write_text(text.replace(old, new, 1))
        planted[f"with-{rule}"] = rule
    found = linted(tmp_path)
    assert found.keys() == planted.keys()
    assert [name for name, rule in planted.items() if rule not in found[name]] == []


def test_make_check_runs_the_linters() -> None:
    done = subprocess.run(
        ["make", "--dry-run", "check"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert re.search("^.* actionlint$", done.stdout, re.MULTILINE)
    assert re.search(r"/zizmor .*\.github action\.yml$", done.stdout, re.MULTILINE)


def strangers_reach(workflows: dict[str, dict[Any, Any]]) -> Iterator[str]:
    """How something else than a night of the default branch gets at runners of our own."""
    for name, workflow in workflows.items():
        on = workflow[True]  # YAML takes `on` for a boolean
        triggers = {on} if isinstance(on, str) else {*on}
        for job_name, job in workflow["jobs"].items():
            wrong = []
            if "images.yml" in job.get("uses", "") and triggers != {
                "schedule",
                "workflow_dispatch",
            }:
                wrong = ["is started by something else than a night"]
            elif "self-hosted" in job.get("runs-on", ()):
                wrong = [text for text, holds in faults_of(job, triggers).items() if holds]
            yield from (f"{name}: {job_name} {text}" for text in wrong)


def faults_of(job: dict[str, Any], triggers: set[str]) -> dict[str, bool]:
    """What a job on a runner of our own must not be, and whether it is."""
    condition = job.get("if", "")
    events = re.findall(r"github\.event_name == '(\w+)'", condition)
    return {
        "is started by something else than a call": triggers != {"workflow_call"},
        "asks for no event": sorted(events) != ["schedule", "workflow_dispatch"],
        "runs any branch": "default_branch" not in condition,
        "needs no approval": not job.get("environment"),
        "can write": {*job.get("permissions", {"all": "write"}).values()} != {"read"},
        "has secrets": "secrets." in str(job),
    }


def test_a_pull_request_is_tested_with_each_python_that_we_name() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {row.rpartition(" ")[2] for row in project["classifiers"] if "Python :: 3." in row}
    jobs = yaml.safe_load((WORKFLOWS / "pr.yml").read_text())["jobs"]
    tested = {*jobs["pythons"]["strategy"]["matrix"]["python"]}
    tested |= {
        step["with"]["python-version"]
        for step in jobs["quick"]["steps"]
        if "setup-python" in step.get("uses", "")
    }
    assert named == tested
    assert project["requires-python"] == f">={min(named, key=Version)}"


def test_what_strangers_send_reaches_no_runner_of_ours() -> None:
    texts = {path.stem: path.read_text() for path in WORKFLOWS.glob("*.yml")}
    assert list(strangers_reach({name: yaml.safe_load(texts[name]) for name in texts})) == []
    for name, old, new, says in (
        ("images", "  workflow_call:", "  pull_request:\n  workflow_call:", "else than a call"),
        ("images", "github.event_name == 'schedule' ||", "", "asks for no event"),
        ("images", "github.event.repository.default_branch", "github.ref_name", "runs any branch"),
        ("images", "    environment: spark\n", "", "needs no approval"),
        ("images", "packages: read", "packages: write", "can write"),
        ("images", "TAG: ${{ inputs.gpu-tag }}", "TAG: ${{ secrets.TAG }}", "has secrets"),
        ("nightly", "  workflow_dispatch:", "  pull_request:", "else than a night"),
        ("pr", "runs-on: ubuntu-24.04", "runs-on: [self-hosted]", "else than a call"),
    ):
        assert old in texts[name], old
        planted = yaml.safe_load(texts[name].replace(old, new))
        assert any(found.endswith(says) for found in strangers_reach({name: planted})), old


@pytest.mark.parametrize(("target", "code", "mark"), [("help", 0, "✓"), ("no-such-target", 2, "✗")])
def test_a_step_of_a_pull_request_is_in_the_summary_and_fails_as_its_target_does(
    target: str, code: int, mark: str, tmp_path: Path
) -> None:
    summary = tmp_path / "summary.md"
    done = subprocess.run(
        [ROOT / ".ci" / "step", target],
        env={**os.environ, "GITHUB_STEP_SUMMARY": str(summary)},
        capture_output=True,
        check=False,
    )
    assert done.returncode == code
    assert f"<summary>{mark} make {target}</summary>" in summary.read_text()
    assert ("No rule to make target" in summary.read_text()) == bool(code)


@pytest.mark.parametrize(
    ("changed", "fails", "ran"),
    [
        ("matrix.yaml", "", ["plan --check", "lock --check", "patch check *"]),
        ("notes.md", "", ["plan --check", "lock --check"]),
        ("patches/a", "plan", ["plan --check", "lock --check", "patch check *"]),
        ("wheels.lock", "patch", ["plan --check", "lock --check", "patch check *"]),
    ],
)
def test_a_pull_request_of_a_project_is_told_all_that_is_wrong(
    changed: str, fails: str, ran: list[str], tmp_path: Path
) -> None:
    workflow = yaml.safe_load(examples.files(Example.CPU)[".github/workflows/pr.yml"])
    command = workflow["jobs"]["check"]["steps"][-1]["with"]["command"]
    program = tmp_path / "bin/imagefactory"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "did $*" >&2\ntest "$1" != "{fails}"\n')
    program.chmod(0o755)
    git = program.with_name("git")  # what changed, as `git diff --quiet BASE... -- PATHS` tells it
    git.write_text(f'#!/bin/sh\nfor path; do case {changed} in "$path"*) exit 1; esac; done\n')
    git.chmod(0o755)
    summary = tmp_path / "summary.md"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        env={
            "PATH": f"{program.parent}:{os.environ['PATH']}",
            "BASE": "origin/main",
            "GITHUB_STEP_SUMMARY": str(summary),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1 if fails else 0, "")
    assert done.stdout.splitlines() == [f"did {one}" for one in ran]
    marks = re.findall("^### (.) imagefactory (.*)$", summary.read_text(), re.MULTILINE)
    assert [name for _, name in marks] == ran
    assert [name.split()[0] for mark, name in marks if mark == "✗"] == ([fails] if fails else [])
