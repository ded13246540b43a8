"""The transport station: images of the engine to files and back, and to other engines.

Blobs are read where the engine keeps them. If that is not possible (another user's files, an engine
elsewhere, or one without containerd's store), ``docker save`` copies them to a folder first.
"""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO

from imagefactory.errors import CheckFailedError, fail
from imagefactory.system import locks, ui
from imagefactory.system.engine import Engine, ImageInfo
from imagefactory.transport import content, saving
from imagefactory.transport.content import BLOBS, Content, Folder
from imagefactory.transport.saving import Saved
from imagefactory.verifying import receipt_store
from imagefactory.verifying.receipt_store import Found, ReceiptStore, Refused

#: The folder in the cache of images that were copied out of an engine.
COPIES = "transport"


class State(StrEnum):
    """What became of an image that was loaded."""

    LOADED = "loaded"
    THERE = "there"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """An image that the engine has now.

    Attributes:
        reference: its tag.
        digest: its digest in the engine.
        state: whether it was there before.
        receipt: whether a receipt of it came along, and counts here.
    """

    reference: str
    digest: str
    state: State
    receipt: bool

    def as_dict(self) -> dict[str, object]:
        """The row as plain JSON values."""
        return {
            "reference": self.reference,
            "digest": self.digest,
            "state": self.state,
            "receipt": self.receipt,
        }


@contextmanager
def reading(engine: Engine, images: Sequence[ImageInfo], cache: Path) -> Iterator[list[Content]]:
    """The blobs of images in the engine, as long as the block runs.

    Raises CheckFailedError ``content-missing`` if the engine has an image only in part.
    """
    with ExitStack() as stack:
        yield [_content(engine, image, cache / COPIES, stack) for image in images]


def _content(engine: Engine, image: ImageInfo, copies: Path, stack: ExitStack) -> Content:
    blobs = engine.blob_folder(image.digest)
    if blobs is not None:
        return content.read(Folder(blobs), image.digest, image.ref)
    folder = copies / image.digest.removeprefix("sha256:")
    folder.parent.mkdir(parents=True, exist_ok=True)
    stack.enter_context(locks.held(folder.with_suffix(".lock"), f"the copy of {image.ref}"))
    digest = _copy(engine, image, folder)
    # when the block has ended: what a kill leaves is used by the next command
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    return content.read(Folder(folder / BLOBS), digest, image.ref)


def _copy(engine: Engine, image: ImageInfo, folder: Path) -> str:
    """Copy an image out of the engine, unless that was done; the digest of its manifest."""
    index = folder / saving.INDEX
    if not index.exists():
        shutil.rmtree(folder, ignore_errors=True)
        (folder / BLOBS).mkdir(parents=True)
        with ui.step(f"copying {image.ref} out of the engine"), engine.saved(image.ref) as stream:
            data = _unpack(stream, folder)
        index.write_bytes(data)
    row = json.loads(index.read_bytes())["manifests"][0]
    return str(row["digest"])


def _unpack(stream: IO[bytes], folder: Path) -> bytes:
    """Write the blobs of a layout in a tar stream to ``folder``; returns its index."""
    data = b""
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            source = archive.extractfile(member)
            if source and member.name == saving.INDEX:
                data = source.read(content.LARGEST)
            elif source and member.name.startswith(f"{BLOBS}/"):
                with (folder / BLOBS / Path(member.name).name).open("wb") as out:
                    shutil.copyfileobj(source, out, 1 << 20)
    return data


def load(engine: Engine, saved: Saved, source: Path, receipts: ReceiptStore) -> tuple[Loaded, ...]:
    """Load the images of a layout that was read, and keep the receipts that count here.

    Raises CheckFailedError ``layout-other-digest`` if the engine has another image then.
    """
    before = engine.find_images(image.name for image in saved.images)
    there = {name for name, found in before.items() if found.digest in _digests(saved, name)}
    if len(there) < len(saved.images):
        with ui.step(f"loading {len(saved.images)} images, {ui.size(saved.size)}"):
            engine.load(source)
    rows = []
    after = engine.find_images(image.name for image in saved.images)
    for image in saved.images:
        found = after.get(image.name)
        if found is None or found.digest not in image.digests:
            what = f"{image.name} is {found.digest if found else 'not there'} in the engine, "
            what += f"{image.digest} in {source}"
            fix = "save the image again, or load it into an engine with containerd's image store"
            raise fail(CheckFailedError, "layout-other-digest", what, fix=fix)
        state = State.THERE if image.name in there else State.LOADED
        kept = _keep_receipt(image, saved, receipts)
        row = Loaded(reference=image.name, digest=found.digest, state=state, receipt=kept)
        rows.append(row)
    return tuple(rows)


def _digests(saved: Saved, name: str) -> tuple[str, ...]:
    return next(image.digests for image in saved.images if image.name == name)


def _keep_receipt(image: Content, saved: Saved, receipts: ReceiptStore) -> bool:
    data = saved.receipts.get(image.digest)
    found = receipt_store.read(data, receipts.trust, *image.digests) if data else None
    if isinstance(found, Refused):
        ui.warn(f"the receipt of {image.name} does not count here: {found.why}")
    if isinstance(found, Found):
        receipts.keep(found)
    return isinstance(found, Found)
