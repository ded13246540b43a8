"""Rules for the further wheels of a flavor that are built from source. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from imagefactory.errors import Problem
from imagefactory.matrix import inherit, origins
from imagefactory.matrix.build_schema import INSIDE, ExtraEntry
from imagefactory.matrix.schema import FlavorEntry
from imagefactory.system.yamlfile import Loc, Positions

#: Variables that the build itself sets.
RESERVED = ("CUDA_HOME", "HOME", "PATH", "PYTHONPATH", "SOURCE_DATE_EPOCH")


def problems(flavor: FlavorEntry, loc: Loc, positions: Positions) -> Iterator[Problem]:
    """Check the ``extras`` of ``flavor``, which are at ``loc``."""
    required = {inherit.subject(text) for text in flavor.requirements}
    for name, entry in flavor.extras.items():
        at = (*loc, name)
        if name == "vllm":
            what, fix = "vLLM itself is no extra", "build it from source with `build`"
            yield _problem("extra-vllm", at, what, fix, positions)
        elif name in required:
            what = f"{name} is in `requirements`, too, so there would be two wheels of it"
            yield _problem("extra-twice", at, what, "remove it in one of the two", positions)
        if flavor.toolchain and "TORCH_CUDA_ARCH_LIST" not in {**flavor.env, **entry.env}:
            what = f"{name} would be compiled for whatever GPUs torch knows"
            fix = 'set TORCH_CUDA_ARCH_LIST in the flavor\'s `env`, such as "12.1a"'
            yield _problem("extra-lacks", at, what, fix, positions)
        yield from _values(entry, at, positions)


def _values(entry: ExtraEntry, loc: Loc, positions: Positions) -> Iterator[Problem]:
    texts: dict[Loc, str] = {(*loc, "source"): entry.source}
    texts |= {(*loc, "sources", key): text for key, text in entry.sources.items()}
    for at, text in texts.items():
        if origins.parse(text) is None:
            what = f"{text!r} is not a source location"
            yield _problem("bad-origin", at, what, f"write {origins.FORMS}", positions)
    for key in ("folder", "setup"):
        text = getattr(entry, key)
        if text is not None and not re.fullmatch(INSIDE, text):
            where = "the source" if key == "folder" else "the folder of the matrix"
            what = f"{text!r} is not a path inside {where}"
            yield _problem("bad-path", (*loc, key), what, "write a relative path", positions)
    for variables in ("env", "sources"):
        for name in getattr(entry, variables):
            if name in RESERVED:
                what, fix = f"{name} is set by the build itself", "remove it"
                yield _problem("extra-env", (*loc, variables, name), what, fix, positions)
    for name in sorted(entry.env.keys() & entry.sources.keys()):
        what, fix = f"{name} is in `sources`, too", "remove it in one of the two"
        yield _problem("extra-env", (*loc, "env", name), what, fix, positions)


def _problem(code: str, loc: Loc, what: str, fix: str, positions: Positions) -> Problem:
    return Problem(code=f"matrix-{code}", where=str(positions.locate(loc)), what=what, fix=fix)
