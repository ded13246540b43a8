"""Starts a project: a matrix to edit, a folder for patches, and a nightly build."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from imagefactory.errors import InputError, Problem

_HERE = Path(__file__).parent
MATRIX = "matrix.yaml"
_NIGHTLY = ".github/workflows/nightly.yml"
#: Further files of a project, and what they are copied from.
_FILES = {"patches/README.md": "patches.md", ".gitignore": "gitignore", _NIGHTLY: "nightly.yml"}


class Example(StrEnum):
    """The images that a new project starts with."""

    GB10 = "gb10"
    CPU = "cpu"


#: GitHub's runner of the platform of an example's images.
_RUNNERS = {Example.GB10: "ubuntu-24.04-arm", Example.CPU: "ubuntu-24.04"}


def files(example: Example) -> Mapping[str, str]:
    """The files of a new project: relative path -> text."""
    texts = {MATRIX: _text(f"{example}.yaml"), **{name: _text(_FILES[name]) for name in _FILES}}
    return {**texts, _NIGHTLY: texts[_NIGHTLY].replace("{runner}", _RUNNERS[example])}


def start(folder: Path, example: Example) -> tuple[Path, ...]:
    """Write a new project to ``folder``, which is created if needed; returns its files.

    Raises InputError, and writes nothing, if one of them exists.
    """
    texts = {folder / name: text for name, text in files(example).items()}
    there = [path for path in texts if path.exists()]
    if there:
        fix = "choose another folder: imagefactory init DIR"
        raise InputError(
            Problem(code="init-exists", where=str(path), what=f"{path} exists already", fix=fix)
            for path in there
        )
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tuple(texts)


def _text(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")
