"""Functions of scripts/engine that decide what belongs to an engine that no longer exists."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from support import ROOT

pytestmark = pytest.mark.programs


@pytest.mark.parametrize(
    ("owner", "gone"),
    [(str(Path("/proc/self/ns/pid").readlink()), False), ("pid:[1]", True), ("someone", False)],
)
def test_a_bridge_is_removed_only_if_no_process_is_in_its_pid_namespace(
    owner: str, gone: bool
) -> None:
    script = '. scripts/engine; for i in 1 2 3; do is_gone "$0" && echo gone || echo alive; done'
    argv = ["bash", "-c", script, owner]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["gone" if gone else "alive"] * 3
