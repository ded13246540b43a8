"""The belt (the lock is the braces): makes sure that the image has the locked torch. Pure.

torch is installed once more, alone, and compared with the layers. Files that differ become the
layer above them. A file in torch's folder that the locked wheel does not have is an error, because
a layer above cannot remove it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from imagefactory.building.stack import identity, trim
from imagefactory.building.tree import Kind, Tree
from imagefactory.errors import CheckFailedError, fail


@dataclass(frozen=True, kw_only=True)
class Layer:
    """An install layer: its name, its files, and what was removed from it (trim.py's record)."""

    name: str
    tree: Tree
    dropped: list[dict[str, Any]]


def swapped(
    fresh: Tree, layers: Sequence[Layer], site: str, dropped: Collection[str] = ()
) -> Iterator[str]:
    """The files to restore so that ``layers`` together have exactly the torch of ``fresh``.

    ``dropped``, relative to site-packages, was removed on purpose. RECORD is written when a wheel
    is installed; torch's own files are all compared.
    """
    for path, entry in fresh:
        if entry.kind is Kind.FOLDER or path.endswith("/RECORD"):
            continue
        if path.removeprefix(f"{site}/") in dropped:
            continue
        found = (one.tree.entries.get(path) for one in reversed(layers))
        top = next((one for one in found if one), None)
        if top is None or top.kind is not Kind.FILE or not trim.equal(entry, top):
            yield path


def strangers(fresh: Tree, layers: Sequence[Layer], site: str) -> list[str]:
    """Files of ``layers`` in torch's folder that the locked wheel does not have."""
    return [
        path
        for layer in layers
        for path, entry in layer.tree.below(f"{site}/torch/")
        if entry.kind is not Kind.FOLDER and path not in fresh
    ]


def make(
    fresh: Tree, layers: Sequence[Layer], site: str, version: str
) -> tuple[Tree, dict[str, Any]]:
    """The layer with the files of torch that had been swapped, and the report on all layers.

    Raises CheckFailedError if a layer has another ``version`` of torch, or files in torch's folder
    that the locked wheel does not have.
    """
    rows = identity.after_each([(one.name, one.tree) for one in layers], site, version)
    extra = strangers(fresh, layers, site)
    if extra:
        names = ", ".join(extra[:5])
        what = f"torch/ has {len(extra)} files that the locked wheel does not have: {names}"
        fix = "find the wheel that has them, and drop it"
        raise fail(CheckFailedError, "torch-strangers", what, fix=fix)
    dropped = {name for layer in layers for row in layer.dropped for name, _ in row["files"]}
    tree = Tree()
    for path in swapped(fresh, layers, site, dropped):
        tree.put(path, fresh.entries[path])
    left_out = [
        {"layer": one.name, **row}
        for one in sorted(layers, key=lambda layer: layer.name)
        for row in one.dropped
    ]
    return tree, {"layers": rows, "dropped": left_out}
