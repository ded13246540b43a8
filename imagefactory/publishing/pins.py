"""What files pin: compose files, quadlets, manifests of Kubernetes, clusters, recipes, scripts.

No form is parsed, so that every form counts: an image is pinned by a file that has its digest or
one of its immutable tags anywhere, whatever repository stands before it. A file that cannot be read
is an error, since it may pin anything.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from imagefactory.errors import InputError, Problem
from imagefactory.publishing import tags
from imagefactory.system import files

#: Files beside the matrix that may pin an image, and the folder of which all files count.
PATTERNS = ("*.yaml", "*.yml", "*.json", "*.container", "*.kube", "*.pod", "*.sh", "*.env", ".env")
RECIPES = "recipes"
#: Bytes of a file that are read.
LARGEST = 10_000_000
_DIGEST = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def of_project(project: Path) -> list[Path]:
    """The files of a project that may pin an image, and its folder of recipes."""
    found = {path for pattern in PATTERNS for path in project.glob(pattern)}
    own = sorted(path for path in found if not path.is_dir())
    return [*own, *(path for path in [project / RECIPES] if path.exists())]


def read(paths: Sequence[Path]) -> dict[str, str]:
    """Digests and immutable tags that files, and the files of folders, have: each with its file.

    Raises InputError with all files that cannot be read.
    """
    found: dict[str, str] = {}
    problems: list[Problem] = []
    for path in dict.fromkeys(_files(paths, problems)):
        try:
            text = files.read_text(path, LARGEST)
        except (OSError, ValueError) as error:
            problems.append(_unreadable(path, error))
            continue
        if "\0" in text:  # UTF-16, or no text
            problems.append(_unreadable(path, ValueError()))
        for word in words(text):
            found.setdefault(word, files.shown(path))
    if problems:
        raise InputError(problems)
    return found


def words(text: str) -> Iterator[str]:
    """The digests, as ``sha256:...``, and the immutable tags and records of moves in a text."""
    yield from (f"sha256:{one}" for one in _DIGEST.findall(text))
    for found in _TAG.findall(text):
        tag = found.rstrip(".")  # at the end of a sentence
        if tags.parse(tag) or tags.parse_record(tag):
            yield tag


def pinning(names: Iterable[str], pins: Mapping[str, str]) -> str:
    """The file that pins one of these digests or tags; empty if none does."""
    return next((pins[name] for name in names if name in pins), "")


def _files(paths: Sequence[Path], problems: list[Problem]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            yield from _below(path, problems)
        else:
            yield path


def _below(folder: Path, problems: list[Problem]) -> Iterator[Path]:
    """The files of a folder, those behind links too, but not those of hidden folders."""

    def cannot(error: OSError) -> None:
        problems.append(_unreadable(Path(error.filename), error))

    seen = set[str]()
    for parent, inner, names in os.walk(folder, onerror=cannot, followlinks=True):
        seen.add(os.path.realpath(parent))
        own = [name for name in inner if not name.startswith(".")]
        inner[:] = [n for n in own if os.path.realpath(Path(parent, n)) not in seen]
        yield from (Path(parent, name) for name in sorted(names))


def _unreadable(path: Path, error: OSError | ValueError) -> Problem:
    why = error.strerror or str(error) if isinstance(error, OSError) else "it is not UTF-8 text"
    return Problem(
        code="pins-unreadable",
        where=files.shown(path),
        what=f"cannot be read: {why}",
        fix="nothing was removed, as it may pin an image: make it readable, or move it elsewhere",
    )
