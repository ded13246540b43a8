"""The container's entrypoint as tests use it: as a program, and as a module."""

from __future__ import annotations

import io
import json
import os
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

from support import ROOT

ENTRYPOINT = ROOT / "templates" / "entrypoint"
MODEL = {"MODEL": "org/a-model"}


def run(
    arguments: Sequence[str] = (), env: Mapping[str, str] = {}
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-B", str(ENTRYPOINT), *arguments],
        env={"PATH": os.environ["PATH"], "PYTHONUTF8": "1", **env},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )


def argv(arguments: Sequence[str] = (), env: Mapping[str, str] = {}) -> list[str]:
    """What the entrypoint would run, as it prints it; without the start of a process."""
    printed = io.StringIO()
    given = {"PATH": os.environ["PATH"], "IMAGEFACTORY_DRY_RUN": "1", **env}
    with redirect_stdout(printed), pytest.raises(SystemExit) as ended:
        PROGRAM.main(arguments, given)
    assert ended.value.code == 0
    value: list[str] = json.loads(printed.getvalue())
    return value


def loaded() -> ModuleType:
    """The entrypoint as a module, for tests of many arguments: a process takes far longer."""
    loader = SourceFileLoader("entrypoint", str(ENTRYPOINT))
    spec = spec_from_loader("entrypoint", loader)
    assert spec is not None
    module = module_from_spec(spec)
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # nothing beside the template
    loader.exec_module(module)
    sys.dont_write_bytecode = writes
    return module


PROGRAM = loaded()


def program(folder: Path, name: str, body: str) -> Path:
    path = folder / name
    path.write_text(f"#!{sys.executable}\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path
