"""Starts a project: a matrix to edit, a folder for patches, and a nightly build."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path

from imagefactory.errors import InputError, fail
from imagefactory.system.files import write_text

_HERE = Path(__file__).parent
MATRIX = "matrix.yaml"
_NIGHTLY, _PR = ".github/workflows/nightly.yml", ".github/workflows/pr.yml"
#: What stands for imagefactory's own repository in a workflow, and that repository on GitHub.
UNKNOWN = "OWNER/imagefactory", "COMMIT"
_GITHUB = re.compile(r"(?:https://|ssh://git@|git@)github\.com[/:]([\w.-]+/[\w.-]+?)(?:\.git)?/?")
_UNITS = "imagefactory-nightly.service", "imagefactory-nightly.timer"
#: Further files of a project, and what they are copied from.
_FILES = {
    "patches/README.md": "patches.md",
    ".gitignore": "gitignore",
    _NIGHTLY: "nightly.yml",
    _PR: "pr.yml",
    **{f"systemd/{name}": name for name in _UNITS},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A new project.

    Attributes:
        written: its files.
        kept: files that existed already.
        unfinished: the workflows that still need the address of imagefactory's repository.
    """

    written: tuple[Path, ...]
    kept: tuple[Path, ...]
    unfinished: tuple[Path, ...]


class Example(StrEnum):
    """The images that a new project starts with."""

    GB10 = "gb10"
    CPU = "cpu"


#: GitHub's runner of the platform of an example's images.
_RUNNERS = {Example.GB10: "ubuntu-24.04-arm", Example.CPU: "ubuntu-24.04"}


def origin(direct_url: str | None) -> tuple[str, str]:
    """The repository on GitHub and the commit that imagefactory was installed from.

    ``direct_url`` is what installers record (PEP 610). ``UNKNOWN`` if it was not from there.
    """
    found = json.loads(direct_url or "{}")
    repository = _GITHUB.fullmatch(found.get("url", ""))
    commit = found.get("vcs_info", {}).get("commit_id", "")
    return (repository[1], commit) if repository and commit else UNKNOWN


def files(example: Example, direct_url: str | None = None) -> Mapping[str, str]:
    """The files of a new project: relative path -> text."""
    texts = {MATRIX: _text(f"{example}.yaml"), **{name: _text(_FILES[name]) for name in _FILES}}
    texts[_NIGHTLY] = texts[_NIGHTLY].replace("{runner}", _RUNNERS[example])
    for name in (_NIGHTLY, _PR):
        for word, value in zip(UNKNOWN, origin(direct_url), strict=True):
            texts[name] = texts[name].replace(word, value)
    return texts


def start(folder: Path, example: Example) -> Started:
    """Write a new project to ``folder``, which is created if needed.

    Files that exist are kept. Raises InputError, and writes nothing, if there is a matrix already.
    """
    installed = _direct_url()
    texts = {folder / name: text for name, text in files(example, installed).items()}
    kept = tuple(path for path in texts if path.exists())
    if folder / MATRIX in kept:
        what, fix = f"{folder / MATRIX} exists already", "choose another folder"
        raise fail(InputError, "init-exists", what, fix=f"{fix}: imagefactory init DIR")
    written = tuple(path for path in texts if path not in kept)
    # the matrix last: with it the project is there, and is not started again
    for path in sorted(written, key=lambda path: path.name == MATRIX):
        path.parent.mkdir(parents=True, exist_ok=True)
        text = texts[path].replace("{folder}", _escaped(folder.resolve()))
        write_text(path, text.replace("{program}", _program()))
    own = tuple(path for path in (folder / _NIGHTLY, folder / _PR) if path in written)
    lacks = origin(installed) == UNKNOWN
    return Started(written=written, kept=kept, unfinished=own if lacks else ())


def _program() -> str:
    """What starts this imagefactory: systemd's PATH has no virtual environment and no ~/.local."""
    own = Path(sys.argv[0])
    if own.name == "imagefactory" and own.is_file():
        return f'"{_escaped(own.absolute())}"'
    return "/usr/bin/env imagefactory"


def _escaped(path: Path) -> str:
    return str(path).replace("%", "%%")  # systemd's specifiers


def cluster() -> str:
    """An example of ``cluster.yaml``."""
    return _text("cluster.yaml")


def _direct_url() -> str | None:
    own = metadata.distributions(name="imagefactory")
    return next((one.read_text("direct_url.json") for one in own), None)


def _text(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")
