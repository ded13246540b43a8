"""Work trees: where a user resolves merge conflicts or writes a new patch, between two runs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from imagefactory.errors import InputError, Problem, fail
from imagefactory.patching.authoring import Words
from imagefactory.patching.merge import MergedFile, changed_files, diff_of, leftover_markers
from imagefactory.patching.patch import IMPORTED
from imagefactory.patching.rebase import write_merged
from imagefactory.patching.sources import SourceTree
from imagefactory.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkTree:
    """A source tree for the user to edit.

    Attributes:
        folder: its own folder, with ``tree/`` and ``port.json``.
        patch: ``project/name`` of the patch.
        version: the release that the diff is for.
        kind: ``port`` for a variant of an existing patch, ``new`` for a new one.
        words: what is known of a new patch.
    """

    folder: Path
    patch: str
    version: str
    kind: str
    words: Words = field(default_factory=Words)

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
    words: Words | None = None,
) -> WorkTree:
    """Create a work tree: a copy of ``source`` with ``files`` in it.

    Raises InputError if it exists already: it may contain the user's work.
    """
    folder = _home(settings) / f"{patch.replace('/', '-')}-{source.version}"
    if folder.exists():
        what = f"a work tree for {patch} on {source.version} exists already: {folder / 'tree'}"
        fix = f"run imagefactory patch continue {patch}, or remove the folder to start over"
        raise fail(InputError, "port-open", what, where=str(folder), fix=fix)
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    work = WorkTree(
        folder=folder, patch=patch, version=source.version, kind=kind, words=words or Words()
    )
    # copies, not links: an editor that writes to a hard link would change the cached sources
    shutil.copytree(source.root, part / "tree", ignore=shutil.ignore_patterns(".*"))
    write_merged(files, part / "tree")
    own = {key: value for key, value in asdict(work.words).items() if key != "imported"}
    values = {"patch": patch, "version": source.version, "kind": kind, "words": own}
    (part / IMPORTED).write_bytes(work.words.imported)
    (part / "port.json").write_text(json.dumps(values, indent=1), encoding="utf-8")
    part.rename(folder)
    return work


def unfinished(settings: Settings) -> list[WorkTree]:
    """Every work tree that exists."""
    marks = sorted(_home(settings).glob("*/port.json"))
    return [_read(mark) for mark in marks]


def _read(mark: Path) -> WorkTree:
    values = json.loads(mark.read_text(encoding="utf-8"))
    imported = mark.with_name(IMPORTED)
    return WorkTree(
        folder=mark.parent,
        patch=values["patch"],
        version=values["version"],
        kind=values["kind"],
        words=Words(
            **values.get("words", {}),
            imported=imported.read_bytes() if imported.is_file() else b"",
        ),
    )


def diff_against(work: WorkTree, pristine: SourceTree) -> str:
    """The diff from ``pristine`` to the work tree.

    Raises InputError if it has conflict markers, or no changes.
    """
    names = changed_files(pristine.root, work.tree)
    markers = list(leftover_markers(work.tree, names))
    if markers:
        fix = f"resolve the conflict, then: imagefactory patch continue {work.patch}"
        raise InputError(
            [
                Problem(code="port-markers", where=where, what="unresolved conflict", fix=fix)
                for where in markers
            ]
        )
    text = diff_of(pristine.root, work.tree, names)
    if not text:
        what, fix = (
            f"{work.tree} has no changes",
            "edit the tree first, or remove its folder",
        )
        raise fail(InputError, "port-unchanged", what, where=str(work.tree), fix=fix)
    return text


def remove(work: WorkTree) -> None:
    """Delete the work tree."""
    shutil.rmtree(work.folder)


def _home(settings: Settings) -> Path:
    return settings.state / "ports"
