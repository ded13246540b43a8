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
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from typing import IO, Any

from imagefactory.system import files
from imagefactory.verifying.outside import tars, tree
from imagefactory.verifying.outside.streams import (
    CHUNK,
    Forward,
    Hashed,
    Reader,
    unpacked,
)
from imagefactory.verifying.outside.tree import DamagedError, Entry, Layer

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
#: Layers that are read at a time.
AT_ONCE = 2
#: Layers that are kept; a gb10 image has some 30.
KEPT = 400


#: What reading a damaged archive ends with. Other errors are those of the machine.
_UNREADABLE = (tarfile.TarError, ValueError, EOFError, zlib.error)


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
                        documents[member.name] = _parsed(content.read(MOST_JSON))
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
        index = _parsed((folder / "index.json").read_bytes())
        for path in sorted((folder / "blobs" / "sha256").iterdir()):
            with path.open("rb") as content:
                size = path.stat().st_size
                _read_blob(f"sha256:{path.name}", content, size, cache, documents, layers)
        digest = str(index["manifests"][0]["digest"])
    except (*_UNREADABLE, FileNotFoundError, KeyError, TypeError, IndexError) as error:
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
            documents[name] = _parsed(data)
        return
    layer = _read_layer(unpacked(start, hashed))
    hashed.rest()
    if hashed.digest != name:
        raise DamagedError(f"a layer has the digest {hashed.digest}, and is listed as {name}")
    layers[name] = layer
    _save(cache, name, layer)


def _parsed(data: bytes) -> Any:
    return json.loads(data, object_pairs_hook=_distinct)


def _distinct(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse names that differ in case only: of those, engines (written in Go) take the last."""
    if len({name.casefold() for name, _ in pairs}) < len(pairs):
        raise ValueError(f"a name is there twice among {', '.join(sorted(dict(pairs)))[:200]}")
    return dict(pairs)


def _assembled(digest: str, documents: Mapping[str, Any], layers: Mapping[str, Layer]) -> Contents:
    """The image ``digest``, from the parts that were read."""
    try:
        manifest = _manifest(digest, documents)
        config = documents[manifest["config"]["digest"]]
        found = tuple(layers[str(part["digest"])] for part in manifest["layers"])
        listed = config["rootfs"]["diff_ids"]
    except (KeyError, TypeError, IndexError, AttributeError, StopIteration):
        raise DamagedError(f"the engine's copy of {digest} lacks a part") from None
    if listed != [layer.unpacked for layer in found]:
        # an engine runs those, if it has unpacked them before
        raise DamagedError("the image's configuration lists other layers than its manifest")
    return Contents(config=config, layers=found)


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
        if len(images) > 1:
            what = f"an index has {len(images)} images, of which an engine chooses one"
            raise DamagedError(f"{what}: verify the image itself, by its own digest")
        found = images[0]
    return found


def _read_layer(stream: Reader) -> Layer:
    """Raises ValueError for a layer that engines may read in different ways."""
    entries: dict[str, Entry] = {}
    texts: dict[str, bytes] = {}
    hashed = Hashed(stream)
    forward = Forward(hashed)
    for member in tars.members(forward):
        path = member.path
        if not path:
            continue
        before = entries.get(path)
        if before and not before.kind == member.kind == "folder":
            raise ValueError(f"a layer has /{path} twice")
        hidden = tree.hidden(path)
        if hidden and any(f"{one}/".startswith(f"{hidden}/") for one in entries):
            raise ValueError(f"a layer has /{hidden}, and removes it")
        keep = bool(_TEXTS.fullmatch(path)) and member.size <= MOST_TEXT
        digest, text = "", None
        if member.kind == "file":
            digest, text = _digest(forward, member.size, keep=keep)
        entries[path] = Entry(
            kind=member.kind,
            mode=member.mode,
            owner=member.owner,
            size=member.size,
            sha256=digest,
            link=member.link,
            attributes=member.attributes,
        )
        if text is not None:
            texts[path] = text
    return Layer(entries=entries, texts=texts, unpacked=hashed.digest)


def _digest(content: Forward, size: int, *, keep: bool) -> tuple[str, bytes | None]:
    sha256, kept = hashlib.sha256(), io.BytesIO()
    while size and (chunk := content.read(min(size, CHUNK))):
        size -= len(chunk)
        sha256.update(chunk)
        if keep:
            kept.write(chunk)
    return sha256.hexdigest(), kept.getvalue() if keep else None


_NAMES = tuple(one.name for one in fields(Entry))


def _fields(entry: Entry) -> tuple[object, ...]:
    return tuple(getattr(entry, name) for name in _NAMES)


def _path(cache: Path, name: str) -> Path:
    return cache / f"{name.removeprefix('sha256:')}.v2"


def _save(cache: Path, name: str, layer: Layer) -> None:
    row = {
        "entries": {path: _fields(entry) for path, entry in layer.entries.items()},
        "texts": {path: text.decode("latin-1") for path, text in layer.texts.items()},
        "unpacked": layer.unpacked,
    }
    packed = zlib.compress(json.dumps(row).encode("utf-8", "surrogatepass"), 1)
    files.keep(_path(cache, name), packed)
    kept = sorted(cache.glob("*.v?"), key=_kept_since)
    for path in kept[:-KEPT]:
        path.unlink(missing_ok=True)


def _kept_since(path: Path) -> int:
    """When a layer was kept; 0 for one that another process has removed meanwhile."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _load(cache: Path, name: str) -> Layer | None:
    try:
        row = json.loads(zlib.decompress(_path(cache, name).read_bytes()))
        return Layer(
            entries={path: Entry(*fields) for path, fields in row["entries"].items()},
            texts={path: text.encode("latin-1") for path, text in row["texts"].items()},
            unpacked=row["unpacked"],
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, zlib.error):
        return None
