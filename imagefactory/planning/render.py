"""The render station: a planned cell becomes the text of its Dockerfile. Pure.

Every value that reaches a template passes a filter that refuses or quotes what could inject an
instruction; a bare ``{{ value }}`` is an error of the template.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2

from imagefactory.errors import InputError, fail
from imagefactory.locking.lock import LockedBase
from imagefactory.planning.templates import Loader, bounded_range
from imagefactory.planning.templates import render as rendered

#: Columns of a rendered line: what a reviewer sees without scrolling.
WIDTH = 120
_CONTROL = re.compile("[\x00-\x1f\x7f\x85\u2028\u2029]")
_PLAIN = re.compile(r"[A-Za-z0-9._+:/@=~-]+")
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
    """A value for ENV and LABEL: in double quotes unless it is plain.

    Backslash, quote and ``$`` are escaped, control characters are refused.
    """
    if _PLAIN.fullmatch(text):
        return Safe(text)
    if _CONTROL.search(text):
        raise fail(
            InputError,
            "render-unsafe-value",
            f"{text!r} holds a line break or another control character",
            fix="write the value on one line",
        )
    return Safe('"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$") + '"')


def fill(text: str, command: bool = False) -> Safe:
    """The lines of ``text`` as one instruction, filled up to ``WIDTH`` columns and continued.

    The first line begins the instruction; with ``command``, the last line ends it. The others may
    change their order to use the space. No line is split, so a quoted value stays whole.
    """
    first, *waiting = filter(None, (line.strip() for line in text.split("\n")))
    rows, last = [first], [waiting.pop()] if command else []
    while units := waiting or last:
        more = len(waiting) + len(last) > 1
        room = WIDTH - len(rows[-1]) - len(" ") - (len(" \\") if more else 0)
        fits = next((unit for unit in units if len(unit) <= room), None)
        if fits:
            rows[-1] += f" {fits}"
        else:
            rows.append(f"    {units[0]}")
        units.remove(fits or units[0])
    return Safe(" \\\n".join(rows) + "\n")


def _only_safe(value: object) -> str:
    if isinstance(value, Safe):
        return value
    raise TypeError(f"template writes {value!r} without a filter: use | word or | quote")


@lru_cache(maxsize=8)
def environment(templates: tuple[Path, ...]) -> jinja2.Environment:
    """The Jinja environment: undefined names are errors, and so is output that passed no filter."""
    env = jinja2.Environment(
        loader=Loader(templates),
        undefined=jinja2.StrictUndefined,
        finalize=_only_safe,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - Dockerfiles, not HTML; `finalize` is the guard
    )
    env.filters.update(word=word, quote=quote, fill=fill)
    env.globals["range"] = bounded_range
    return env


def find(templates: tuple[Path, ...], name: str) -> Path:
    """The file ``name`` in the first folder that has it; the last folder has them all."""
    files = (folder / name for folder in templates)
    there = (file for file in files if file.is_symlink() or file.exists())  # even if unreadable
    return next(there, templates[-1] / name)


def render(templates: tuple[Path, ...], name: str, values: Mapping[str, Any]) -> str:
    """The text of template ``name``, which is in the first of the folders ``templates`` to have it.

    Raises InputError for a value that no filter lets through, and for a template that is wrong.
    """
    return rendered(environment(templates), find(templates, name), values)


def base_dockerfile(templates: tuple[Path, ...], base: LockedBase, reference: str) -> str:
    """The Dockerfile of the shared stages of ``base``; ``reference`` is what FROM names."""
    values = {
        "name": base.name,
        "suite": base.suite,
        "builder_adds": bool(base.all_debs),
        "reference": reference,
    }
    return render(templates, "base.Dockerfile.j2", {"base": values})
