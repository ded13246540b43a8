"""Helpers for end-to-end tests: running the command line, copying the project, deriving images."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from imagefactory.settings import from_environment
from imagefactory.system.engine import Engine
from support import ROOT

#: An account for the main index that it does not ask for: it must be found nowhere.
PLANTED = "planted-s3cret-of-the-index"
CPU = "imagefactory/vllm:cpu-vllm0.32.0-torch2.13.0-cpu"


@dataclass(frozen=True)
class Completed:
    """A finished command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Verified(NamedTuple):
    """What verifying an image gave: the command's result, and the report for CI systems."""

    done: Completed
    junit: Path


def factory(*argv: str, cwd: Path = ROOT, environ: Mapping[str, str] | None = None) -> Completed:
    """Run imagefactory as a user would."""
    done = subprocess.run(
        [sys.executable, "-m", "imagefactory", *argv],
        cwd=cwd,
        env={**os.environ, **(environ or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return Completed(done.returncode, done.stdout, done.stderr)


def planted() -> dict[str, str]:
    """Variables with an account in the URL of the main index; nothing else about it changes."""
    index = from_environment(os.environ).indexes[0]
    return {"UV_DEFAULT_INDEX": index.replace("://", f"://robot:{PLANTED}@", 1)}


def copy_project(folder: Path, *changes: tuple[str, str]) -> Path:
    """Copy the project to ``folder``, with parts of its matrix replaced."""
    for name in ("templates", "patches", "scripts"):
        shutil.copytree(ROOT / name, folder / name)
    shutil.copy(ROOT / "wheels.lock", folder / "wheels.lock")
    text = (ROOT / "matrix.yaml").read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (folder / "matrix.yaml").write_text(text)
    return folder


def derive(engine: Engine, folder: Path, image: str, tag: str, dockerfile: str) -> str:
    """Build ``tag`` from ``image`` with the instructions of ``dockerfile`` added."""
    (folder / "Dockerfile").write_text(f"FROM {image}\n{dockerfile}")
    engine.build(folder, tag=tag)
    return tag
