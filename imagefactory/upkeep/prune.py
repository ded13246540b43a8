"""Plans what to remove to free disk space, with the reasons, before anything is removed. Pure.

An image belongs to imagefactory only if it has both the label and a name in the matrix's
repository: images derived from ours inherit the label, and any image can be given the name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from imagefactory.planning.cell_plan import LABEL
from imagefactory.system.engine import CacheRecord, ImageInfo

#: Text in the descriptions of build-cache records that only imagefactory's Dockerfiles cause.
OURS = (
    "/imagefactory-archives",
    "python3 -m factory.",
    "/factory/",
    "factory /factory",
    "--date=@315532800",
)


class Kind(StrEnum):
    """The kind of an item."""

    IMAGE = "image"
    CACHE = "build cache"
    CONTAINER = "container"
    FOLDER = "folder"


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """An item that can be removed; ``size`` in bytes, as far as it is known.

    ``name`` is an image reference, the id of a cache record or a container, or a path.
    """

    kind: Kind
    name: str
    size: int
    why: str

    def as_dict(self) -> dict[str, object]:
        """The item as plain JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruning:
    """A plan: the items to remove, and those that are kept, each with the reason."""

    items: tuple[Item, ...]
    kept: tuple[Item, ...]


def images(
    found: Mapping[str, ImageInfo],
    wanted: Mapping[str, str],
    *,
    repository: str,
    used: Collection[str],
    verified: Collection[str],
    everything: bool,
) -> Pruning:
    """Decide which images to remove; ``found`` has them by reference.

    ``wanted`` is the build key of every cell by tag, ``used`` the digests of images that have
    containers, ``verified`` the digests with a receipt that passed.
    """
    items: list[Item] = []
    kept: list[Item] = []
    seen: set[str] = set()
    for ref, image in sorted(found.items()):
        if not ref.startswith(f"{repository}:") or f"{LABEL}.build-key" not in image.labels:
            continue
        why = _why(ref, image, wanted, everything=everything)
        shown = f"{why}; its digest was verified" if why and image.digest in verified else why
        size = 0 if image.digest in seen else image.size  # another name uses no space
        seen.add(image.digest)
        item = Item(kind=Kind.IMAGE, name=ref, size=size, why=shown or "up to date")
        if why and image.digest in used:
            kept.append(Item(kind=Kind.IMAGE, name=ref, size=size, why="a container uses it"))
        else:
            (items if why else kept).append(item)
    return Pruning(items=tuple(items), kept=tuple(kept))


def _why(ref: str, image: ImageInfo, wanted: Mapping[str, str], *, everything: bool) -> str:
    if ref not in wanted:
        return "no cell of the matrix has this name"
    if image.labels[f"{LABEL}.build-key"] != wanted[ref]:
        return "outdated: its inputs have changed"
    return "--all was given" if everything else ""


def cache(records: Sequence[CacheRecord], *, private: bool) -> Pruning:
    """Decide which build-cache records to remove: all of a private engine's, else only ours."""
    ours: list[Item] = []
    others: list[Item] = []
    for record in records:
        if not record.reclaimable:
            continue
        mine = private or any(word in record.description for word in OURS)
        why = "recreated by the next build" if mine else "not known to be imagefactory's"
        item = Item(kind=Kind.CACHE, name=record.id, size=record.size, why=why)
        (ours if mine else others).append(item)
    return Pruning(items=tuple(ours), kept=tuple(others))


def folders(
    root: Path, keep: Collection[str], why: str, sizes: Mapping[Path, int]
) -> Iterator[Item]:
    """The entries of ``root`` that are not in ``keep``."""
    for path, size in sorted(sizes.items()):
        if path.parent == root and path.name not in keep:
            yield Item(kind=Kind.FOLDER, name=str(path), size=size, why=why)
