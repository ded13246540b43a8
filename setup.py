"""Builds the wheel: adds the repository's folders that imagefactory reads when it runs."""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

#: Copied to ``imagefactory/data``; see ``imagefactory/stock.py``.
FOLDERS = "templates", "patches", "recipes"
FILES = ("scripts/engine",)


class BuildPy(build_py):
    """``build_py`` into an empty folder, with the stock files as package data."""

    def run(self) -> None:
        """Build; an editable install reads the files of the repository instead."""
        if self.editable_mode:
            super().run()
            return
        package = Path(self.build_lib, "imagefactory")
        shutil.rmtree(package, ignore_errors=True)  # may have files that were deleted since
        super().run()
        for name in FOLDERS:
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(name, package / "data" / name, ignore=ignored)
        for name in FILES:
            target = package / "data" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(name, target)


setup(cmdclass={"build_py": BuildPy})
