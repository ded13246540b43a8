"""The shell steps of images.yml, run as GitHub runs them: what a night leaves gets to the branch."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import ROOT

pytestmark = pytest.mark.programs

IMAGES = yaml.safe_load((ROOT / ".github/workflows/images.yml").read_text())
WHO = ("-c", "user.name=me", "-c", "user.email=me@example.org")


def git(folder: Path, *argv: str) -> str:
    done = subprocess.run(
        ["git", *WHO, *argv], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def step(job: str, part: str) -> str:
    """The commands of the step of a job that have that part."""
    steps: list[dict[str, Any]] = IMAGES["jobs"][job]["steps"]
    texts = [one.get("run") or one.get("with", {}).get("command", "") for one in steps]
    (found,) = [text for text in texts if part in text]
    return str(found)


def bash(text: str, folder: Path, **environ: str) -> tuple[int, str]:
    """Exit code and output of a step in ``folder``."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text],
        cwd=folder,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def program(folder: Path, name: str, text: str) -> str:
    """A PATH on which ``name`` is that script."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    """A repository at GitHub with one commit, and a tag that has the name of the branch."""
    folder = tmp_path / "origin.git"
    git(tmp_path, "init", "-q", "-b", "main", "--template=", "first")
    git(tmp_path / "first", "commit", "-q", "--allow-empty", "-m", "first")
    git(tmp_path / "first", "tag", "nightly")
    git(tmp_path, "clone", "-q", "--bare", "first", str(folder))
    return folder


def night(origin: Path, folder: Path, subject: str = "") -> tuple[Path, Mapping[str, str]]:
    """A checkout after a night that may have left a commit, and the outputs of its job."""
    git(origin.parent, "clone", "-q", str(origin), str(folder))
    if subject:
        tip = "origin/nightly" if git(folder, "branch", "-r", "--list", "*/nightly") else "main"
        git(folder, "checkout", "-q", "--detach", tip)
        git(folder, "commit", "-q", "--allow-empty", "-m", subject)
        git(folder, "update-ref", "refs/heads/nightly", "HEAD")
        git(folder, "checkout", "-q", "main")
        (folder / "nightly-report.md").write_text(f"# {subject}\n")
    files = {name: str(folder / ".git" / name) for name in ("SUMMARY", "OUTPUT")}
    code, said = bash(
        step("night", "git bundle create"),
        folder,
        GITHUB_STEP_SUMMARY=files["SUMMARY"],
        GITHUB_OUTPUT=files["OUTPUT"],
    )
    assert code == 0, said
    assert Path(files["SUMMARY"]).exists() == bool(subject)
    output = Path(files["OUTPUT"])
    text = output.read_text() if output.exists() else ""
    return folder, dict(line.split("=", 1) for line in text.splitlines())


def test_what_each_night_commits_gets_to_the_branch(origin: Path, tmp_path: Path) -> None:
    path = program(tmp_path / "bin", "gh", "test auth,setup-git = $1,$2")
    for number in (1, 2):
        left, outputs = night(origin, tmp_path / f"night{number}", f"Night {number}")
        assert outputs == {"branch": "true"}
        fresh = tmp_path / f"branch{number}"
        git(tmp_path, "clone", "-q", str(origin), str(fresh))
        code, said = bash(step("branch", "git push"), fresh, RUNNER_TEMP=str(left), PATH=path)
        assert code == 0, said
    subjects = git(origin, "log", "--format=%s", "refs/heads/nightly").splitlines()
    assert subjects == ["Night 2", "Night 1", "first"]


def test_a_night_without_a_commit_leaves_nothing_to_push(origin: Path, tmp_path: Path) -> None:
    left, outputs = night(origin, tmp_path / "without")
    assert (outputs, (left / "nightly.bundle").exists()) == ({}, False)
    git(origin, "branch", "nightly", "main")
    git(tmp_path, "clone", "-q", "-b", "nightly", str(origin), str(tmp_path / "checked-out"))
    left, outputs = night(tmp_path / "checked-out", tmp_path / "same")
    assert (outputs, (left / "nightly.bundle").exists()) == ({}, False)


@pytest.mark.parametrize(
    ("inputs", "argv"),
    [
        ({}, "--to ghcr.io/me/images --report nightly-report.md"),
        (
            {"TO": "example.org/a b", "MAX_CELLS": "2", "MAX_MINUTES": "300"},
            "--to example.org/a b --report nightly-report.md --max-cells 2 --max-minutes 300",
        ),
    ],
)
def test_a_night_gets_the_inputs_of_the_workflow(
    inputs: dict[str, str], argv: str, tmp_path: Path
) -> None:
    path = program(tmp_path / "bin", "imagefactory", 'echo "$# $*"')
    environ = {"TO": "", "MAX_CELLS": "", "MAX_MINUTES": "", "GITHUB_REPOSITORY": "Me/Images"}
    code, said = bash(step("night", "nightly --to"), tmp_path, **environ | inputs, PATH=path)
    assert (code, said) == (0, f"{5 + 2 * max(0, len(inputs) - 1)} nightly {argv}\n")


@pytest.mark.parametrize("status", [0, 1, 3])
def test_an_image_that_fails_on_a_gpu_fails_the_job_and_is_still_described(
    status: int, tmp_path: Path
) -> None:
    program(tmp_path / "bin", "docker", "true")
    failing = f'echo "$1" "$2"; test "$1" != verify || exit {status}'
    path = program(tmp_path / "bin", "imagefactory", failing)
    environ = {"TO": "", "TAG": "nightly", "GITHUB_REPOSITORY": "Me/Images"}
    code, said = bash(step("gpu", "verify"), tmp_path, **environ, PATH=path)
    image = "ghcr.io/me/images:nightly"
    assert (code, said.splitlines()) == (status, [f"verify {image}", f"inspect {image}"])
