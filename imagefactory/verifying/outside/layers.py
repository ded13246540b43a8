"""Reads what is in the layers of an image, from the blobs of an OCI layout.

A layer that was read once is kept in the cache folder by the digest of its blob.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import IO, Any

from imagefactory.verifying.outside.streams import (
    CHUNK,
    Forward,
    Hashed,
    Reader,
    unpacked,
)

#: Manifests, configurations and indexes are JSON of a few kilobytes.
MOST_JSON = 8 << 20
#: The largest text that is kept: the RECORD of a wheel with 50,000 files.
MOST_TEXT = 16 << 20
#: Files whose text is judged, and not only its hash.
_TEXTS = re.compile(
    r"opt/imagefactory/.*|opt/venv/pyvenv\.cfg|opt/venv/bin/[^/]*"
    r"|opt/venv/lib/[^/]+/site-packages/[^/]+\.dist-info/(?:RECORD|entry_points\.txt)"
    r"|usr/lib/python3[^/]*/venv/scripts/(?:common|posix)/[^/]*"
)
_KINDS = {
    tarfile.DIRTYPE: "folder",
    tarfile.SYMTYPE: "link",
    tarfile.LNKTYPE: "hard link",
    tarfile.CHRTYPE: "device",
    tarfile.BLKTYPE: "device",
    tarfile.FIFOTYPE: "pipe",
}
#: Layers that are read at a time.
AT_ONCE = 2
#: Layers that are kept; a gb10 image has some 30.
KEPT = 400


#: What reading a damaged archive ends with.
_UNREADABLE = (tarfile.TarError, ValueError, EOFError, OSError, zlib.error)


class DamagedError(Exception):
    """An image that cannot be read, or whose parts do not match their digests."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of a layer.

    ``kind`` is file, folder, link, hard link, device or pipe; ``link`` the target of a link;
    ``attributes`` are extended ones, such as capabilities. ``sha256`` is empty for anything but
    files.
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
    """The files of one layer by path, and the texts of those whose text is judged."""

    entries: Mapping[str, Entry]
    texts: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What an image consists of: its configuration, and its layers from the bottom up."""

    config: Mapping[str, Any]
    layers: tuple[Layer, ...]


def read_stream(stream: IO[bytes], digest: str, cache: Path) -> Contents:
    """The image ``digest`` from an OCI layout in one tar stream.

    ``digest`` is of a manifest, an index or a configuration. Every part is compared with its
    digest. Raises DamagedError.
    """
    documents: dict[str, Any] = {}
    layers: dict[str, Layer] = {}
    try:
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                content = archive.extractfile(member) if member.isreg() else None
                if content is None or not member.name.startswith("blobs/sha256/"):
                    if content is not None and member.name in ("index.json", "manifest.json"):
                        documents[member.name] = json.loads(content.read(MOST_JSON))
                    continue
                name = f"sha256:{member.name.rpartition('/')[2]}"
                _read_blob(name, content, member.size, cache, documents, layers)
    except _UNREADABLE as error:
        raise DamagedError(f"the engine's copy of the image cannot be read: {error}") from None
    return _assembled(digest, documents, layers)


def read_folder(folder: Path, digest: str, cache: Path) -> Contents | None:
    """The image ``digest`` from a folder of blobs, each of them named by its SHA-256.

    None if one of them is not there. Raises DamagedError.
    """
    documents: dict[str, Any] = {}
    layers: dict[str, Layer] = {}

    def add(name: str) -> None:
        path = folder / name.removeprefix("sha256:")
        with path.open("rb") as content:
            _read_blob(name, content, path.stat().st_size, cache, documents, layers)

    try:
        add(digest)
        for row in documents[digest].get("manifests", ()):
            add(str(row["digest"]))
        manifest = _manifest(digest, documents)
        parts = [manifest["config"], *manifest["layers"]]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(add, {str(part["digest"]) for part in parts}))
    except FileNotFoundError:
        return None
    except (*_UNREADABLE, KeyError, TypeError, IndexError, AttributeError, StopIteration) as error:
        raise DamagedError(f"the engine's copy of the image cannot be read: {error}") from None
    return _assembled(digest, documents, layers)


def read_layout(folder: Path, cache: Path) -> Contents:
    """The only image of an OCI layout in ``folder``. Raises DamagedError."""
    documents: dict[str, Any] = {}
    layers: dict[str, Layer] = {}
    try:
        index = json.loads((folder / "index.json").read_text(encoding="utf-8"))
        for path in sorted((folder / "blobs" / "sha256").iterdir()):
            with path.open("rb") as content:
                size = path.stat().st_size
                _read_blob(f"sha256:{path.name}", content, size, cache, documents, layers)
        digest = str(index["manifests"][0]["digest"])
    except (*_UNREADABLE, KeyError, TypeError, IndexError) as error:
        raise DamagedError(f"{folder} is not an OCI layout that can be read: {error}") from None
    return _assembled(digest, documents, layers)


def _read_blob(
    name: str,
    content: IO[bytes],
    size: int,
    cache: Path,
    documents: dict[str, Any],
    layers: dict[str, Layer],
) -> None:
    """Read one blob: JSON goes to ``documents``, a layer to ``layers``."""
    known = _load(cache, name)
    if known is not None:
        layers[name] = known
        return
    hashed = Hashed(content)
    start = hashed.read(4)
    if start[:1] == b"{" and size <= MOST_JSON:
        data = start + hashed.rest()
        if hashed.digest == name:
            documents[name] = json.loads(data)
        return
    layer = _read_layer(unpacked(start, hashed))
    hashed.rest()
    if hashed.digest != name:
        raise DamagedError(f"a layer has the digest {hashed.digest}, and is listed as {name}")
    layers[name] = layer
    _save(cache, name, layer)


def _assembled(digest: str, documents: Mapping[str, Any], layers: Mapping[str, Layer]) -> Contents:
    """The image ``digest``, from the parts that were read."""
    try:
        manifest = _manifest(digest, documents)
        config = documents[manifest["config"]["digest"]]
        wanted = [str(part["digest"]) for part in manifest["layers"]]
        return Contents(config=config, layers=tuple(layers[name] for name in wanted))
    except (KeyError, TypeError, IndexError, AttributeError, StopIteration):
        raise DamagedError(f"the engine's copy of {digest} lacks a part") from None


def _manifest(digest: str, documents: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] | None = documents.get(digest)
    if found is None or ("layers" not in found and "manifests" not in found):
        # an engine without the containerd image store names an image by its configuration
        rows = documents["index.json"]["manifests"]
        found = next(
            documents[row["digest"]]
            for row in rows
            if documents[row["digest"]]["config"]["digest"] == digest
        )
    if "manifests" in found:
        images = [
            documents[row["digest"]]
            for row in found["manifests"]
            if row["digest"] in documents
            and (row.get("platform") or {}).get("architecture") != "unknown"
        ]
        found = images[0]
    return found


def _read_layer(stream: Reader) -> Layer:
    entries: dict[str, Entry] = {}
    texts: dict[str, bytes] = {}
    forward = Forward(stream)
    with tarfile.open(fileobj=forward, mode="r:") as archive:  # type: ignore[call-overload]
        for member in archive:
            path = member.name.removeprefix("./").rstrip("/")
            if not path or path == ".":
                continue
            keep = bool(_TEXTS.fullmatch(path)) and member.size <= MOST_TEXT
            content = archive.extractfile(member) if member.isreg() else None
            digest, text = _digest(content, keep=keep) if content else ("", None)
            entries[path] = _entry(member, digest)
            texts.pop(path, None)
            if text is not None:
                texts[path] = text
            archive.members = []
    # tarfile takes a header that it does not understand for the end; an engine might not
    if not forward.ended():
        raise DamagedError("a layer has a part that tar cannot read")
    return Layer(entries=entries, texts=texts)


def _digest(content: IO[bytes], *, keep: bool) -> tuple[str, bytes | None]:
    sha256, kept = hashlib.sha256(), io.BytesIO()
    while chunk := content.read(CHUNK):
        sha256.update(chunk)
        if keep:
            kept.write(chunk)
    return sha256.hexdigest(), kept.getvalue() if keep else None


def _entry(member: tarfile.TarInfo, digest: str) -> Entry:
    attributes = sorted(
        f"{name.removeprefix('SCHILY.xattr.')}={value}"
        for name, value in member.pax_headers.items()
        if name.startswith("SCHILY.xattr.")
    )
    return Entry(
        kind="file" if member.isreg() else _KINDS.get(member.type, "unknown"),
        mode=member.mode & 0o7777,
        owner=f"{member.uid}:{member.gid}",
        size=member.size if member.isreg() else 0,
        sha256=digest,
        link=member.linkname,
        attributes=" ".join(attributes),
    )


_NAMES = tuple(one.name for one in fields(Entry))


def _fields(entry: Entry) -> tuple[object, ...]:
    return tuple(getattr(entry, name) for name in _NAMES)


def _path(cache: Path, name: str) -> Path:
    return cache / f"{name.removeprefix('sha256:')}.v1"


def _save(cache: Path, name: str, layer: Layer) -> None:
    row = {
        "entries": {path: _fields(entry) for path, entry in layer.entries.items()},
        "texts": {path: text.decode("latin-1") for path, text in layer.texts.items()},
    }
    cache.mkdir(parents=True, exist_ok=True)
    target = _path(cache, name)
    part = target.with_suffix(".part")
    part.write_bytes(zlib.compress(json.dumps(row).encode("utf-8", "surrogatepass"), 1))
    part.replace(target)
    kept = sorted(cache.glob("*.v1"), key=lambda path: path.stat().st_mtime_ns)
    for path in kept[:-KEPT]:
        path.unlink(missing_ok=True)


def _load(cache: Path, name: str) -> Layer | None:
    try:
        row = json.loads(zlib.decompress(_path(cache, name).read_bytes()))
        return Layer(
            entries={path: Entry(*fields) for path, fields in row["entries"].items()},
            texts={path: text.encode("latin-1") for path, text in row["texts"].items()},
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, zlib.error):
        return None


def merged(layers: Iterator[Layer] | tuple[Layer, ...]) -> Layer:
    """The files of all layers on top of each other, as a container sees them."""
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
            source = entry.link.removeprefix("./").lstrip("/")
            if entry.kind == "hard link" and source in tree:
                tree[path] = tree[source]
                text = texts.get(source)
            else:
                tree[path], text = entry, layer.texts.get(path)
            texts.pop(path, None)
            if text is not None:
                texts[path] = text
    return Layer(entries=tree, texts=texts)


def _removed(layer: Layer, tree: Mapping[str, Entry]) -> tuple[set[str], set[str]]:
    """Paths that ``layer`` removes with all below them, and folders of which only that goes."""
    gone, emptied = set(), set()
    for path, entry in layer.entries.items():
        folder, _, name = path.rpartition("/")
        if name == ".wh..wh..opq":
            emptied.add(folder)
        elif name.startswith(".wh."):
            gone.add(f"{folder}/{name[4:]}".lstrip("/"))
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
