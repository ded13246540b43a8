"""Compresses layers: one blob for each, in a folder that keeps it.

Equal layers give equal blobs on any machine, because the compressor is pinned like a wheel.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from imagefactory.errors import SetupError, fail

#: The library that compresses, and the release of Zstandard in it; pyproject.toml pins it.
LIBRARY, ZSTD = "zstandard==0.25.0", (1, 5, 7)
#: Level 1 costs little more than storing.
LEVEL = 1
#: Pieces that are read before they are compressed.
AHEAD = 8
#: Small chunks of an archive are joined up to this size; what is written does not depend on it.
PIECE = 1 << 20
TYPE = "application/vnd.oci.image.layer.v1.tar"


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """A layer as it is stored.

    Attributes:
        digest: of the stored bytes.
        size: their number.
        media_type: how they are compressed.
        diff_id: the digest of the unpacked archive.
        path: the file.
    """

    digest: str
    size: int
    media_type: str
    diff_id: str
    path: Path

    @property
    def descriptor(self) -> dict[str, Any]:
        """The layer as a manifest lists it."""
        return {"mediaType": self.media_type, "digest": self.digest, "size": self.size}


def write(archive: Iterable[bytes], out: IO[bytes]) -> dict[str, Any]:
    """Compress an archive into ``out``; returns the blob's fields but for its path.

    Raises SetupError if the installed compressor is another one than the pinned.
    """
    import zstandard  # noqa: PLC0415 - only needed to build

    if zstandard.ZSTD_VERSION != ZSTD:
        found = ".".join(map(str, zstandard.ZSTD_VERSION))
        what = f"zstd {found} is installed, and would compress layers to other bytes"
        raise fail(SetupError, "zstd-version", what, fix=f"install {LIBRARY}")
    # with threads the result is another one than without, but the same for any number of them
    threads = os.cpu_count() or 1
    compressor = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True, threads=threads)
    stream = compressor.compressobj()
    stored, unpacked, size = hashlib.sha256(), hashlib.sha256(), 0

    def put(data: bytes) -> int:
        stored.update(data)
        return out.write(data)

    def add(piece: bytes) -> int:
        unpacked.update(piece)
        return put(stream.compress(piece))

    with ThreadPoolExecutor(1) as behind:  # compresses while the next piece is read
        waiting: deque[Future[int]] = deque()
        for piece in _pieces(archive):
            waiting.append(behind.submit(add, piece))
            if len(waiting) > AHEAD:
                size += waiting.popleft().result()
        size += sum(one.result() for one in waiting)
    size += put(stream.flush())
    return {
        "digest": f"sha256:{stored.hexdigest()}",
        "size": size,
        "media_type": f"{TYPE}+zstd",
        "diff_id": f"sha256:{unpacked.hexdigest()}",
    }


def _pieces(archive: Iterable[bytes]) -> Iterator[bytes]:
    """The archive in pieces of at least ``PIECE`` bytes, but for the last."""
    waiting: list[bytes] = []
    size = 0
    for chunk in archive:
        waiting.append(chunk)
        size += len(chunk)
        if size >= PIECE:
            yield b"".join(waiting)
            waiting, size = [], 0
    if waiting:
        yield b"".join(waiting)


def store(folder: Path, archive: Iterable[bytes], record: Any) -> Blob:
    """Write a layer to ``folder``, atomically, with a ``record`` of what is in it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as name:
        part = Path(name) / "layer"
        part.mkdir()
        with (part / "blob").open("wb") as out:
            made = write(archive, out)
        text = json.dumps({"blob": made, "record": record})
        (part / "layer.json").write_text(text, encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        part.rename(folder)
    return Blob(**made, path=folder / "blob")


def find(folder: Path) -> tuple[Blob, Any] | None:
    """The layer in ``folder`` and its record; None if there is none, or not all of it."""
    try:
        row = json.loads((folder / "layer.json").read_text(encoding="utf-8"))
        blob = Blob(**row["blob"], path=folder / "blob")
        if blob.path.stat().st_size != blob.size:
            return None
        return blob, row["record"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
