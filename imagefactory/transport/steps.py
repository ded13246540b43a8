"""Parts of an image that an engine can keep: those with only its first layers.

An engine forgets what it has of an image when its pull breaks. So an image is pulled in steps, each
of which adds a large layer that is not there; a step that is done need not be sent again.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import IO, Any

from imagefactory.system import manifests, strict_json
from imagefactory.transport.content import Content, Store

#: Bytes of a layer that is worth a step.
LARGE = 16 << 20


@dataclass(frozen=True, slots=True)
class _More:
    """A store with a few blobs more."""

    store: Store
    more: Mapping[str, bytes] = field(repr=False)

    def size(self, digest: str) -> int | None:
        """As the protocol says."""
        return len(self.more[digest]) if digest in self.more else self.store.size(digest)

    def open(self, digest: str) -> IO[bytes]:
        """As the protocol says."""
        return io.BytesIO(self.more[digest]) if digest in self.more else self.store.open(digest)


def of(image: Content, there: AbstractSet[str]) -> list[Content]:
    """The steps before the whole image, for an engine that has the unpacked layers ``there``."""
    original = image.image_manifest
    manifest = _read(image, original)
    config = _read(image, manifest["config"]["digest"])
    layers, diffs = manifest["layers"], config["rootfs"]["diff_ids"]
    large = [
        number
        for number, (layer, diff) in enumerate(zip(layers, diffs, strict=True), start=1)
        if layer["size"] >= LARGE and diff not in there
    ]
    return [_step(image, original, config, number) for number in large if number < len(layers)]


def _step(image: Content, original: str, config: Mapping[str, Any], count: int) -> Content:
    """The image with its first ``count`` layers: equal images have equal steps."""
    manifest = _read(image, original)
    rootfs = {"type": "layers", "diff_ids": config["rootfs"]["diff_ids"][:count]}
    platform = {name: config[name] for name in ("os", "architecture", "variant") if name in config}
    data = strict_json.dumps({**platform, "config": {}, "rootfs": rootfs})
    config_digest = manifests.digest_of(data)
    own = {**manifest["config"], "digest": config_digest, "size": len(data)}
    layers = manifest["layers"][:count]
    row = {"schemaVersion": 2, "config": own, "layers": layers}
    text = strict_json.dumps({**row, "mediaType": image.manifests[original]})
    digest = manifests.digest_of(text)
    more = {digest: text, config_digest: data}
    sizes = {name: len(blob) for name, blob in more.items()}
    return Content(
        name=image.name,
        digest=digest,
        platform=image.platform,
        configs=(config_digest,),
        manifests={digest: image.manifests[original]},
        blobs={**sizes, **{layer["digest"]: layer["size"] for layer in layers}},
        store=_More(image.store, more),
    )


def _read(image: Content, digest: str) -> dict[str, Any]:
    with image.store.open(digest) as file:
        found: dict[str, Any] = json.load(file)
        return found
