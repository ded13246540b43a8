"""Templates of pages: what all pages share, and how their values are escaped."""

from __future__ import annotations

from pathlib import Path

import jinja2

from imagefactory.system import ui

SHARED = Path(__file__).parent / "templates"


def environment(cache: Path, *folders: Path) -> jinja2.Environment:
    """Renders the templates in ``folders`` and the shared ones; every value is escaped.

    ``cache`` is a folder for compiled templates.
    """
    cache.mkdir(parents=True, exist_ok=True)
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader([*folders, SHARED]),
        undefined=jinja2.StrictUndefined,
        bytecode_cache=jinja2.FileSystemBytecodeCache(str(cache)),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters |= {"bytes": ui.size, "short": short}
    return env


def short(digest: str) -> str:
    """A digest as people know it."""
    return digest.removeprefix("sha256:")[:12]
