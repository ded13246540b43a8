"""The files of an image: what each layer has, and what a container sees of all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from imagefactory.verifying.outside import tars

_OPAQUE = ".wh..wh..opq"


class DamagedError(Exception):
    """An image that cannot be read, or whose parts do not match their digests."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of a layer.

    ``kind`` is file, folder, link, hard link, device or pipe; ``link`` the target of a link, or the
    numbers of a device; ``attributes`` are extended ones, such as capabilities. ``sha256`` is empty
    for anything but files.
    """

    kind: str
    mode: int
    owner: str
    size: int
    sha256: str
    link: str
    attributes: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """The files of one layer by path, and the texts of those whose text is judged.

    ``unpacked`` is the digest of its archive, by which configurations list it.
    """

    entries: Mapping[str, Entry]
    texts: Mapping[str, bytes] = field(default_factory=dict)
    unpacked: str = ""


def hidden(path: str) -> str:
    """The path that the entry ``path`` of a layer removes, empty if it removes none.

    Raises ValueError for a name that engines understand in different ways.
    """
    folder, _, name = path.rpartition("/")
    if not name.startswith(".wh.") or name == _OPAQUE:
        return ""
    removed = name[4:]
    if removed in ("", ".", "..") or removed.startswith(".wh."):
        raise ValueError(f"a layer has the odd name /{path}")
    return f"{folder}/{removed}".lstrip("/")


def merged(layers: Iterable[Layer]) -> Layer:
    """The files of all layers on top of each other, as a container sees them.

    Raises DamagedError where engines would see something else.
    """
    tree: dict[str, Entry] = {}
    texts: dict[str, bytes] = {}
    for layer in layers:
        gone, emptied = _removed(layer, tree)
        if gone or emptied:
            for path in [path for path in tree if _is_below(path, gone, emptied)]:
                del tree[path]
                texts.pop(path, None)
        for path, entry in layer.entries.items():
            if path.rpartition("/")[2].startswith(".wh."):
                continue
            if entry.kind == "hard link":
                source = _target(path, entry)
                tree[path], text = _linked(path, entry, source, tree), texts.get(source)
            else:
                tree[path], text = entry, layer.texts.get(path)
            texts.pop(path, None)
            if text is not None:
                texts[path] = text
        _refuse_ways_through_links(layer, tree)
    return Layer(entries=tree, texts=texts)


def _target(path: str, entry: Entry) -> str:
    """The path that a hard link names."""
    try:
        return tars.relative(entry.link)
    except ValueError:
        what = f"/{path} is a hard link to {entry.link}, which is outside of the image"
        raise DamagedError(what) from None


def _linked(path: str, entry: Entry, source: str, tree: Mapping[str, Entry]) -> Entry:
    """The file that a hard link is. What its header says, an engine does to that file."""
    found = tree.get(source)
    if found is None or found.kind == "folder":
        raise DamagedError(f"/{path} is a hard link to /{source}, which is not a file")
    same = (entry.mode, entry.owner) == (found.mode, found.owner) or found.kind == "link"
    if not same or entry.attributes not in ("", found.attributes):
        raise DamagedError(f"/{path} is a hard link that changes /{source}")
    return found


def _refuse_ways_through_links(layer: Layer, tree: Mapping[str, Entry]) -> None:
    """Below a link an engine changes another file, or puts a folder in place of the link."""
    plain: set[str] = {""}
    for path in layer.entries:
        above = path.rpartition("/")[0]
        while above not in plain:
            found = tree.get(above)
            if found is not None and found.kind != "folder":
                raise DamagedError(f"a layer has /{path}, and /{above} is a {found.kind}")
            plain.add(above)
            above = above.rpartition("/")[0]


def _removed(layer: Layer, tree: Mapping[str, Entry]) -> tuple[set[str], set[str]]:
    """Paths that ``layer`` removes with all below them, and folders of which only that goes."""
    gone, emptied = set(), set()
    for path, entry in layer.entries.items():
        folder, _, name = path.rpartition("/")
        if name == _OPAQUE:
            emptied.add(folder)
        elif removed := hidden(path):
            gone.add(removed)
        elif entry.kind != "folder" and path in tree and tree[path].kind == "folder":
            emptied.add(path)
    return gone, emptied


def _is_below(path: str, gone: set[str], emptied: set[str]) -> bool:
    if path in gone:
        return True
    above = path.rpartition("/")[0]
    while above:
        if above in gone or above in emptied:
            return True
        above = above.rpartition("/")[0]
    return "" in emptied
