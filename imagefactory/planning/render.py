"""The render station: a planned cell becomes the text of its Dockerfile. Pure.

Every value that reaches a template passes a filter that refuses or quotes what could inject an
instruction; a bare ``{{ value }}`` is an error of the template.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2

from imagefactory.errors import InputError, fail
from imagefactory.matrix.cell import Base

SITE = "opt/venv/lib/python{python}/site-packages"
_CONTROL = re.compile("[\x00-\x1f\x7f\x85\u2028\u2029]")
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+:/@=~-]*")


class Safe(str):
    """Text that a filter below has let through."""

    __slots__ = ()


@lru_cache(maxsize=4096)
def word(text: str) -> Safe:
    """A value that is one plain word everywhere.

    In a Dockerfile instruction, in a shell, in a path.
    """
    if not _WORD.fullmatch(text):
        raise fail(
            InputError,
            "render-unsafe-value",
            f"{text!r} cannot stand in a Dockerfile as a plain word",
            fix="use letters, digits and . _ + : / @ = ~ - only",
        )
    return Safe(text)


@lru_cache(maxsize=4096)
def quote(text: str) -> Safe:
    """A value in double quotes for ENV and LABEL.

    Backslash, quote and ``$`` escaped, control characters refused.
    """
    if _CONTROL.search(text):
        raise fail(
            InputError,
            "render-unsafe-value",
            f"{text!r} holds a line break or another control character",
            fix="write the value on one line",
        )
    return Safe('"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$") + '"')


def safe_command(argv: Sequence[str]) -> Safe:
    """A command line for RUN, each argument quoted for the shell.

    None may break the line or be a variable.
    """
    for argument in argv:
        quote(argument)
        if "$" in argument or "\\" in argument:
            raise fail(
                InputError,
                "render-unsafe-value",
                f"{argument!r} holds $ or a backslash",
                fix="leave them out",
            )
    return Safe(shlex.join(argv))


def _only_safe(value: object) -> str:
    if isinstance(value, Safe):
        return value
    raise TypeError(
        f"template writes {value!r} without a filter: use | word, | quote or | safe_command"
    )


@lru_cache(maxsize=8)
def environment(templates: Path) -> jinja2.Environment:
    """The Jinja environment: undefined names are errors, and so is output that passed no filter."""
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates),
        undefined=jinja2.StrictUndefined,
        finalize=_only_safe,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - Dockerfiles, not HTML; `finalize` is the guard
    )
    env.filters.update(word=word, quote=quote, safe_command=safe_command)
    return env


def render(templates: Path, name: str, values: Mapping[str, Any]) -> str:
    """The text of template ``name``. Raises InputError for a value that no filter lets through."""
    return environment(templates).get_template(name).render(**values)


def base_dockerfile(templates: Path, base: Base, image: str) -> str:
    """The Dockerfile of the shared stages of ``base``; ``image`` is what FROM names."""
    return render(templates, "base.Dockerfile.j2", {"base": {**_fields(base), "image": image}})


def _fields(base: Base) -> dict[str, object]:
    return {"name": base.name, "packages": base.packages}
