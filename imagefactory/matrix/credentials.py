"""Finds credentials in the URLs of a matrix file, which would end up in locks and images. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel

from imagefactory.errors import Problem
from imagefactory.redaction import IN_URL
from imagefactory.settings import index_variable
from imagefactory.system.yamlfile import Loc, Positions


def problems(file: BaseModel, positions: Positions) -> Iterator[Problem]:
    """A problem for every text of ``file`` with user and password, or a token, in a URL."""
    for loc, text in _texts(file.model_dump(), ()):
        if IN_URL.search(text):
            code, what, fix = _of_index(loc) if loc[0] == "indexes" else _of_other(loc)
            yield Problem(code=code, where=str(positions.locate(loc)), what=what, fix=fix)


def _of_index(loc: Loc) -> tuple[str, str, str]:
    start = index_variable(str(loc[1]))
    return (
        "matrix-index-credentials",
        f"the URL of index {loc[1]!r} contains credentials",
        f"remove them, and set {start}_USERNAME and {start}_PASSWORD, or use ~/.netrc",
    )


def _of_other(loc: Loc) -> tuple[str, str, str]:
    what = f"a URL in {'.'.join(map(str, loc))} contains credentials"
    if "env" in loc:
        fix = "remove it, as whoever has the image can read it; set it when a container starts"
    else:
        fix = "remove them, and write them into ~/.netrc"
    return "matrix-credentials", what, fix


def _texts(value: object, loc: Loc) -> Iterator[tuple[Loc, str]]:
    if isinstance(value, str):
        yield loc, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _texts(item, (*loc, key))
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _texts(item, (*loc, number))
