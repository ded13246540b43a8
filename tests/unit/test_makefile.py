"""The Makefile: what `make demo` builds."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from support import ROOT
from support.project import project_matrix

from imagefactory.matrix.select import select

pytestmark = pytest.mark.programs


@pytest.mark.parametrize(
    ("machine", "platform"),
    [("x86_64", "linux/amd64"), ("aarch64", "linux/arm64"), ("arm64", "linux/arm64")],
)
def test_the_demo_is_a_cell_that_the_machine_runs_without_emulation(
    tmp_path: Path, machine: str, platform: str
) -> None:
    uname = tmp_path / "uname"
    uname.write_text(f"#!/bin/sh\necho {machine}\n")
    uname.chmod(0o755)
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["make", "--dry-run", "demo"],
        cwd=ROOT,
        env={name: value for name, value in environ.items() if name != "DEMO"},
        capture_output=True,
        text=True,
        check=True,
    )
    (line,) = [line for line in done.stdout.splitlines() if " verify " in line]
    expression = line.partition("--select ")[2].strip("'")
    (cell,) = select(project_matrix().cells, [expression])
    assert (cell.platform, cell.channel) == (platform, "cpu")
