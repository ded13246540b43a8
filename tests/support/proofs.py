"""Runs the shipped proofs by hand."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from imagefactory.inbuild import proofkit
from support import ROOT


def judged(
    name: str, tree: Path, env: Mapping[str, str] | None = None, *, cwd: Path | None = None
) -> tuple[int, str]:
    """A proof's exit code and the line that it prints, with ``env`` added to the environment."""
    folder = str(Path(proofkit.__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-B", str(ROOT / "patches" / name / "proof.py"), str(tree)],
        env={**os.environ, "PYTHONPATH": folder, **(env or {})},
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
    (line,) = done.stdout.splitlines() or [done.stderr]
    return done.returncode, line
