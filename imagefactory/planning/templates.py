"""Reads Dockerfile templates, which may be a project's own: what is wrong there is one error."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from jinja2.loaders import split_template_path

from imagefactory.errors import FactoryError, InputError, fail
from imagefactory.system import files
from imagefactory.system.collection import without_collection

#: Bytes of a template; the largest of ours has five thousand.
LARGEST = 1_000_000
#: Numbers that one `range` may have: a template loops over layers and wheels.
LONGEST_RANGE = 100_000


class Loader(jinja2.BaseLoader):
    """Reads a template from the first of some folders to have it, only if it is a small file."""

    def __init__(self, folders: tuple[Path, ...]) -> None:
        self._folders = folders

    def get_source(
        self, _: jinja2.Environment, template: str
    ) -> tuple[str, str, Callable[[], bool]]:
        """The text of a template, its path, and whether the file is still the same one."""
        parts = split_template_path(template)
        path = self._find(parts)
        if path is None:
            raise jinja2.TemplateNotFound(template)
        text, written = read(path), path.lstat().st_mtime_ns
        return text, str(path), lambda: self._is_same(parts, path, written)

    def _find(self, parts: Sequence[str]) -> Path | None:
        paths = (folder.joinpath(*parts) for folder in self._folders)
        return next((path for path in paths if path.is_symlink() or path.exists()), None)

    def _is_same(self, parts: Sequence[str], path: Path, written: int) -> bool:
        return self._find(parts) == path and path.lstat().st_mtime_ns == written


def read(path: Path) -> str:
    """The text of a file in a folder of templates. Raises InputError for what is no text file."""
    try:
        return files.read_text(path, LARGEST)
    except OSError as error:
        what = f"it cannot be read: {error.strerror}"
    except UnicodeDecodeError as error:
        what = f"not UTF-8 (byte {error.start})"
    fix = f"correct it, or remove it to use imagefactory's own {path.name}"
    raise fail(InputError, "template-unreadable", what, where=str(path), fix=fix)


def bounded_range(*limits: int) -> range:
    """``range`` in templates. Raises ValueError for one that takes too long."""
    found = range(*limits)
    if len(found) > LONGEST_RANGE:
        raise ValueError(f"a range of {len(found)} is longer than {LONGEST_RANGE}")
    return found


def render(env: jinja2.Environment, path: Path, values: Mapping[str, Any]) -> str:
    """The text of the template at ``path``, which ``env`` finds by its name.

    Raises InputError with the file and line for whatever is wrong in it.
    """
    try:
        with without_collection():  # a template that includes itself fills the stack
            text = env.get_template(path.name).render(**values)
    except FactoryError:
        raise
    except Exception as error:  # noqa: BLE001 - a template is code, and may raise anything
        raise _problem(path, error) from None
    if not text.strip():
        fix = f"remove it to use imagefactory's own {path.name}"
        raise fail(InputError, "template-empty", "it writes nothing", where=str(path), fix=fix)
    return text


def _problem(path: Path, error: Exception) -> FactoryError:
    where = f"{path}:1"
    if isinstance(error, jinja2.TemplateSyntaxError):
        where = f"{error.filename or path}:{error.lineno}"
    elif not isinstance(error, RecursionError):  # whose traceback has no end
        rows = traceback.extract_tb(error.__traceback__)
        lines = [row for row in rows if row.filename == str(path)]
        where = f"{path}:{lines[-1].lineno}" if lines else where
    what = {
        jinja2.TemplateNotFound: f"there is no template {error}",
        RecursionError: "it includes itself, or nests too deeply",
    }.get(type(error), f"{type(error).__name__}: {error}")
    fix = f"correct it, or remove it to use imagefactory's own {path.name}"
    return fail(InputError, "template-invalid", what, where=where, fix=fix)
