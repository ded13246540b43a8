"""Small trees that look like an image's files, for the probe to look at."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from imagefactory.verifying import probe

TORCH = """
__version__ = "{version}"
class version:
    cuda = {cuda!r}
class _C:
    @staticmethod
    def _cuda_getArchFlags():
        return "sm_80 sm_120"
"""
needs_gcc = pytest.mark.skipif(
    shutil.which("gcc") is None or shutil.which("nm") is None,
    reason="needs gcc and nm to make libraries",
)


class ImageTree:
    """A folder with the parts of an image that the probe looks at."""

    def __init__(self, folder: Path) -> None:
        self.site = folder / "site-packages"
        self.home = folder / "imagefactory"
        self.site.mkdir()
        self.home.mkdir()

    def write(self, name: str, text: str) -> Path:
        path = self.site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def distribution(self, name: str, version: str, files: dict[str, int]) -> None:
        info = f"{name}-{version}.dist-info"
        self.write(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        self.write(
            f"{info}/RECORD", "".join(f"{file},sha256=x,{size}\n" for file, size in files.items())
        )

    def torch(self, version: str = "2.13.0+cpu", cuda: str | None = None) -> None:
        self.write("torch/__init__.py", TORCH.format(version=version, cuda=cuda))

    def library(self, name: str, source: str, *options: str) -> Path:
        path = self.site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        code = path.with_suffix(".c")
        code.write_text(source)
        subprocess.run(
            ["gcc", "-shared", "-fPIC", "-nostdlib", "-o", path, code, *options], check=True
        )
        code.unlink()
        return path

    def manifest(self, **values: Any) -> None:
        (self.home / "manifest.json").write_text(json.dumps({"cell": "a-cell", **values}))

    def proof(self, name: str, text: str) -> None:
        path = self.home / "proofs" / name / "proof.py"
        path.parent.mkdir(parents=True)
        path.write_text(text)

    def report(self, **env: str) -> dict[str, Any]:
        """The probe's report, from a Python that has nothing but this tree on its path."""
        done = subprocess.run(
            [sys.executable, "-S", "-B", "-P", "-"],
            input=probe.program(home=str(self.home), site=str(self.site)),
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(self.site), **env},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return report

    def facts(self, theme: str, **env: str) -> dict[str, Any]:
        """What the theme's probe reports, which has to work."""
        report = self.report(**env)
        assert theme not in report["errors"], report["errors"][theme]
        facts: dict[str, Any] = report["facts"][theme]
        return facts
