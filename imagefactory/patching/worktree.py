"""Work trees: where a person finishes what a merge could not, or begins a patch.

They outlive the run.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from imagefactory.errors import InputError, Problem, fail
from imagefactory.patching.carry import write_merged
from imagefactory.patching.merge import MergedFile, changed_files, diff_of, leftover_markers
from imagefactory.patching.sources import SourceTree
from imagefactory.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkTree:
    """A tree that a person edits.

    Attributes:
        folder: its own folder, with ``tree/`` and what is known of it.
        patch: ``project/name`` of the patch that comes out of it.
        version: the release that it is for.
        kind: ``port`` for a variant more, ``new`` for a new entry.
        notes: what a draft entry is told about where it came from.
    """

    folder: Path
    patch: str
    version: str
    kind: str
    notes: str = ""

    @property
    def tree(self) -> Path:
        """The tree to edit."""
        return self.folder / "tree"


def begin(
    settings: Settings,
    patch: str,
    source: SourceTree,
    *,
    kind: str,
    files: Sequence[MergedFile] = (),
    notes: str = "",
) -> WorkTree:
    """A copy of ``source`` with ``files`` in it.

    Raises InputError if there is one: a person's work is in it.
    """
    folder = _home(settings) / f"{patch.replace('/', '-')}-{source.version}"
    if folder.exists():
        what = f"there is a work tree for {patch} on {source.version} already: {folder / 'tree'}"
        fix = f"imagefactory patch continue {patch}, or remove the folder to begin anew"
        raise fail(InputError, "port-open", what, where=str(folder), fix=fix)
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    work = WorkTree(folder=folder, patch=patch, version=source.version, kind=kind, notes=notes)
    # real copies: an editor that writes into a linked file would change the kept sources
    shutil.copytree(source.root, part / "tree", ignore=shutil.ignore_patterns(".*"))
    write_merged(files, part / "tree")
    told = {key: value for key, value in asdict(work).items() if key != "folder"}
    (part / "port.json").write_text(json.dumps(told, indent=1), encoding="utf-8")
    part.rename(folder)
    return work


def open_ones(settings: Settings) -> list[WorkTree]:
    """Every work tree that waits for a person."""
    marks = sorted(_home(settings).glob("*/port.json"))
    return [
        WorkTree(folder=mark.parent, **json.loads(mark.read_text(encoding="utf-8")))
        for mark in marks
    ]


def finished(work: WorkTree, pristine: SourceTree) -> str:
    """The diff that the work tree amounts to.

    Raises InputError for conflict markers, or if nothing was changed.
    """
    names = changed_files(pristine.root, work.tree)
    places = list(leftover_markers(work.tree, names))
    if places:
        fix = (
            "keep what is right, take the markers out, then: imagefactory patch "
            f"continue {work.patch}"
        )
        raise InputError(
            [
                Problem(code="port-markers", where=place, what="a conflict marker is left", fix=fix)
                for place in places
            ]
        )
    text = diff_of(pristine.root, work.tree, names)
    if not text:
        what, fix = (
            f"nothing is changed in {work.tree}",
            "edit the tree first, or remove its folder",
        )
        raise fail(InputError, "port-unchanged", what, where=str(work.tree), fix=fix)
    return text


def close(work: WorkTree) -> None:
    """Take the work tree away; what it was for is written."""
    shutil.rmtree(work.folder)


def _home(settings: Settings) -> Path:
    return settings.state / "ports"
