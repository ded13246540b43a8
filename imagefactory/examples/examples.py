"""Starts a project: a matrix to edit, a folder for patches, and a nightly build."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from imagefactory.errors import InputError, fail
from imagefactory.system.files import write_text

_HERE = Path(__file__).parent
MATRIX = "matrix.yaml"
_NIGHTLY = ".github/workflows/nightly.yml"
_UNITS = "imagefactory-nightly.service", "imagefactory-nightly.timer"
#: Further files of a project, and what they are copied from.
_FILES = {
    "patches/README.md": "patches.md",
    ".gitignore": "gitignore",
    _NIGHTLY: "nightly.yml",
    **{f"systemd/{name}": name for name in _UNITS},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The files of a new project: those that were written, and those that existed already."""

    written: tuple[Path, ...]
    kept: tuple[Path, ...]


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


def start(folder: Path, example: Example) -> Started:
    """Write a new project to ``folder``, which is created if needed.

    Files that exist are kept. Raises InputError, and writes nothing, if there is a matrix already.
    """
    texts = {folder / name: text for name, text in files(example).items()}
    kept = tuple(path for path in texts if path.exists())
    if folder / MATRIX in kept:
        what, fix = f"{folder / MATRIX} exists already", "choose another folder"
        raise fail(InputError, "init-exists", what, fix=f"{fix}: imagefactory init DIR")
    written = tuple(path for path in texts if path not in kept)
    # the matrix last: with it the project is there, and is not started again
    for path in sorted(written, key=lambda path: path.name == MATRIX):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, texts[path].replace("{folder}", str(folder.resolve())))
    return Started(written=written, kept=kept)


def _text(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")
