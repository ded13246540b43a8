"""Fake images and a fake engine that has them."""

from __future__ import annotations

from collections.abc import Iterable

from imagefactory.planning.cell_plan import CellPlan
from imagefactory.system.engine import Engine, ImageInfo

DIGEST = "sha256:" + "a" * 64


class Images(Engine):
    """A fake engine that has only the given images."""

    def __init__(self, *images: ImageInfo) -> None:
        super().__init__()
        self.images = {image.ref: image for image in images}

    def find_images(self, refs: Iterable[str]) -> dict[str, ImageInfo]:
        return {ref: self.images[ref] for ref in refs if ref in self.images}


def image(made: CellPlan, **labels: str) -> ImageInfo:
    return ImageInfo(
        ref=made.cell.tag,
        digest=DIGEST,
        layers=(),
        platform=made.cell.platform,
        labels={**made.labels, **labels},
        env={},
        size=1,
    )
