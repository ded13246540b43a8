"""An engine that has one whole image."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from imagefactory.system.engine import Engine
from support.whole_images import WholeImage, archive, sha256


class Saving(Engine):
    """A fake engine that has one image."""

    def __init__(self, image: WholeImage) -> None:
        super().__init__()
        self.image = image
        self.asked: list[str] = []

    def blob_folder(self, digest: str) -> None:
        del digest

    @contextmanager
    def saved(self, ref: str) -> Iterator[IO[bytes]]:
        del ref
        yield io.BytesIO(self.image.saved()[0])

    @contextmanager
    def folder(self, image: str, path: str) -> Iterator[IO[bytes]]:
        del image
        self.asked.append(path)
        above = f"{path.strip('/').rpartition('/')[0]}/"
        inside = {
            name.removeprefix(above): node
            for name, node in self.image.tree.items()
            if name.startswith(f"{path.strip('/')}/")
        }
        yield io.BytesIO(archive(inside))


def layout(folder: Path, layer: bytes, unpacked: bytes | None = None) -> Path:
    """An OCI layout with one layer, and what that is before it is compressed."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def blob(data: bytes) -> dict[str, str]:
        (blobs / sha256(data)).write_bytes(data)
        return {"digest": f"sha256:{sha256(data)}"}

    config = {"rootfs": {"diff_ids": [f"sha256:{sha256(unpacked or layer)}"]}}
    image = {"config": blob(json.dumps(config).encode()), "layers": [blob(layer)]}
    row = blob(json.dumps(image).encode())
    (folder / "index.json").write_text(json.dumps({"manifests": [row]}))
    return folder
