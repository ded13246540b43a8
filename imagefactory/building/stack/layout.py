"""Writes OCI image layouts of layers that exist: blobs are linked, not copied."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from imagefactory.building.blob import Blob
from imagefactory.system.files import link

_TYPE = "application/vnd.oci.image"


#: The repository of the names in layouts; an engine has images of it only while it loads them.
REPOSITORY = "imagefactory/layers"


def write(folder: Path, layers: Sequence[Blob], config: Mapping[str, Any]) -> str:
    """Write the image with ``layers`` and ``config`` to ``folder``, and nothing else.

    Returns its digest. ``config`` lacks only the layers' digests. ``docker load`` calls the image
    ``name_of(folder)``.
    """
    full = {**config, "rootfs": {"type": "layers", "diff_ids": [one.diff_id for one in layers]}}
    config_data = _json(full)
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": f"{_TYPE}.manifest.v1+json",
            "config": {"mediaType": f"{_TYPE}.config.v1+json", **_describe(config_data)},
            "layers": [one.descriptor for one in layers],
        }
    )
    described = _describe(manifest)
    platform = {name: config[name] for name in ("os", "architecture", "variant") if name in config}
    named = {"io.containerd.image.name": f"docker.io/{name_of(folder)}"}
    more = {"platform": platform, "annotations": named}
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as name:
        made = Path(name) / "layout"
        _fill(made, layers, (config_data, manifest), {**described, **more})
        shutil.rmtree(folder, ignore_errors=True)
        made.rename(folder)
    return str(described["digest"])


def name_of(folder: Path) -> str:
    """The name of the image in a layout."""
    return f"{REPOSITORY}:{folder.name[:100]}"


def _fill(
    folder: Path, layers: Sequence[Blob], documents: Sequence[bytes], manifest: Mapping[str, Any]
) -> None:
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    for layer in layers:
        target = blobs / layer.digest.removeprefix("sha256:")
        if not target.exists():
            link(layer.path, target)
    for data in documents:
        (blobs / hashlib.sha256(data).hexdigest()).write_bytes(data)
    entry = {"mediaType": f"{_TYPE}.manifest.v1+json", **manifest}
    index = {"schemaVersion": 2, "mediaType": f"{_TYPE}.index.v1+json", "manifests": [entry]}
    (folder / "index.json").write_text(json.dumps(index), encoding="utf-8")
    (folder / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}', encoding="utf-8")


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _describe(data: bytes) -> dict[str, Any]:
    return {"digest": f"sha256:{hashlib.sha256(data).hexdigest()}", "size": len(data)}
