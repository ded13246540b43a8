"""Builds a wheel of the project in the working directory, by the build backend that it names.

    python backend.py OUT

What PEP 517 and PEP 518 say, without an environment of its own: the build requirements are on the
path. Standard library only: it runs in the builder.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import re
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

#: What a project without ``[build-system]`` is built by.
LEGACY = {"requires": ["setuptools"], "build-backend": "setuptools.build_meta:__legacy__"}


def build_system(project: Path) -> dict[str, Any]:
    """The table ``[build-system]`` of a project. Raises SystemExit if it is no Python project."""
    file = project / "pyproject.toml"
    if not file.is_file() and not (project / "setup.py").is_file():
        sys.exit(f"E: {project} has neither pyproject.toml nor setup.py: name another `folder`")
    try:
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
        return {**LEGACY, **tomllib.loads(text).get("build-system", {})}
    except ValueError as error:
        sys.exit(f"E: {file} is not valid: {error}")


def lacking(requires: Sequence[str]) -> list[str]:
    """The build requirements that are not there, by name.

    The lock decides on versions. Those with a condition are left to the backend.
    """
    found = []
    for line in requires:
        name = re.match(r"[A-Za-z0-9._-]+", line)
        if name and ";" not in line:
            try:
                importlib.metadata.distribution(name[0])
            except importlib.metadata.PackageNotFoundError:
                found.append(line)
    return found


def main(out: Path, project: Path) -> int:
    """Build the wheel. Raises SystemExit if something is missing."""
    system = build_system(project)
    missing = lacking(system["requires"])
    if missing:
        sys.exit(f"E: its build needs {', '.join(missing)}: add it to the toolchain of its `tools`")
    sys.path[:0] = [str(project / path) for path in system.get("backend-path", [])]
    module, _, attribute = system["build-backend"].partition(":")
    backend: Any = importlib.import_module(module)
    for name in filter(None, attribute.split(".")):
        backend = getattr(backend, name)
    print(f"built {backend.build_wheel(str(out))}")
    return 0


if __name__ == "__main__":
    del sys.path[0]  # the folder of this file, whose modules are none of the project's
    sys.exit(main(Path(sys.argv[1]), Path.cwd()))
