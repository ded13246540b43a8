"""Loading saved images: what the engine has then, and which receipts are kept."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import cast

import pytest
from support.promoting import labels, receipt_of

from imagefactory.errors import CheckFailedError
from imagefactory.system.engine import Engine, ImageInfo
from imagefactory.system.signing import NOBODY
from imagefactory.transport import transport
from imagefactory.transport.content import Content, Folder
from imagefactory.transport.saving import Saved
from imagefactory.verifying import receipt_store
from imagefactory.verifying.receipt_store import ReceiptStore

DIGEST, CONFIG, OTHER = (f"sha256:{digit * 64}" for digit in "123")


class FakeEngine:
    """Has the image ``before``, and ``after`` something was loaded."""

    def __init__(self, before: str | None, after: str) -> None:
        self.digest, self.after, self.loads = before, after, 0

    def find_images(self, refs: Iterable[str]) -> dict[str, ImageInfo]:
        if self.digest is None:
            return {}
        own = {"layers": (), "platform": "linux/arm64", "labels": {}, "env": {}, "size": 1}
        return {ref: ImageInfo(ref=ref, digest=self.digest, **own) for ref in refs}  # type: ignore[arg-type]

    def load(self, _: Path) -> None:
        self.digest, self.loads = self.after, self.loads + 1


def load(
    tmp_path: Path, engine: FakeEngine, receipt: bytes
) -> tuple[transport.Loaded, ReceiptStore]:
    image = Content(
        name="me/x:1",
        digest=DIGEST,
        platform="linux/arm64",
        configs=(CONFIG,),
        manifests={DIGEST: "m"},
        blobs={DIGEST: 1},
        store=Folder(tmp_path),
    )
    saved = Saved(images=(image,), receipts={DIGEST: receipt}, size=1)
    receipts = ReceiptStore(folder=tmp_path / "receipts")
    (row,) = transport.load(cast("Engine", engine), saved, tmp_path, receipts)
    return row, receipts


@pytest.mark.parametrize(
    ("before", "after", "state"),
    [(None, DIGEST, "loaded"), (OTHER, CONFIG, "loaded"), (DIGEST, DIGEST, "there")],
)
def test_an_image_is_loaded_unless_it_is_there_and_its_receipt_is_kept(
    tmp_path: Path, before: str | None, after: str, state: str
) -> None:
    own = receipt_store.write(receipt_of(DIGEST, labels("1")), NOBODY)
    engine = FakeEngine(before, after)
    row, receipts = load(tmp_path, engine, own)
    assert (row.state, row.receipt, engine.loads) == (state, True, int(state == "loaded"))
    assert receipts.path(DIGEST).read_bytes() == own


def test_a_receipt_of_another_image_is_not_kept(tmp_path: Path) -> None:
    own = receipt_store.write(receipt_of(OTHER, labels("1")), NOBODY)
    row, receipts = load(tmp_path, FakeEngine(DIGEST, DIGEST), own)
    assert (row.receipt, receipts.folder.exists()) == (False, False)


def test_an_engine_that_has_another_image_then_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckFailedError, match="layout-other-digest"):
        load(tmp_path, FakeEngine(None, OTHER), b"")
