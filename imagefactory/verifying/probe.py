"""Assembles the probe: one program of the core and every theme's ``probe.py``."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from imagefactory.verifying import check_registry, checks, probe_core

#: The folder in an image that holds the manifest and the proofs.
HOME = "/opt/imagefactory"


def sources() -> dict[str, str]:
    """The text of every probe by its theme, in the order of the themes."""
    specs = {name: find_spec(f"{checks.__name__}.{name}.probe") for name in check_registry.themes()}
    return {
        theme: Path(spec.origin).read_text(encoding="utf-8")
        for theme, spec in specs.items()
        if spec and spec.origin
    }


def program(*, home: str = HOME, site: str = "") -> str:
    """The text to feed to the image's Python, which prints its report on the last line.

    ``home`` and ``site`` are paths in the image; an empty ``site`` means the site-packages of the
    Python that runs the program.
    """
    core = Path(probe_core.__file__).read_text(encoding="utf-8")
    return f"{core}\n\nmain({sources()!r}, {home!r}, {site!r})\n"
