"""Writes a tree as an OCI image layout that is the same wherever it is written."""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from imagefactory.building import blob, tarball
from imagefactory.building.blob import Blob
from imagefactory.building.tree import Tree
from imagefactory.system import zstd
from imagefactory.system.platforms import Platform

_TYPE = "application/vnd.oci.image"
_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_CHUNK = 1 << 20


def write(
    tree: Tree, folder: Path, *, platform: Platform, epoch: int, history: str, tag: str
) -> tuple[str, str, int]:
    """Write an image with one layer to ``folder``, which must not exist yet.

    Every date is ``epoch``, in seconds. Returns the digests of the manifest and of the compressed
    layer, and that layer's size in bytes.
    """
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    layer = _write_layer(tree, blobs, epoch)
    config = _blob(blobs, _config(platform, layer.diff_id, epoch, history))
    manifest = _blob(
        blobs,
        {
            "schemaVersion": 2,
            "mediaType": f"{_TYPE}.manifest.v1+json",
            "config": {"mediaType": f"{_TYPE}.config.v1+json", **config},
            "layers": [layer.descriptor],
        },
    )
    entry = {
        "mediaType": f"{_TYPE}.manifest.v1+json",
        **manifest,
        "annotations": {"org.opencontainers.image.ref.name": tag},
        "platform": _platform(platform),
    }
    index = {"schemaVersion": 2, "mediaType": f"{_TYPE}.index.v1+json", "manifests": [entry]}
    (folder / "index.json").write_text(json.dumps(index), encoding="utf-8")
    (folder / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}', encoding="utf-8")
    return str(manifest["digest"]), layer.digest, layer.size


def rewrap(folder: Path) -> str:
    """Give the layer in ``folder`` another digest, with the same content; returns the manifest's.

    The layer is stored in a gzip stream, whose header has the number of times that this was done.
    """
    blobs, index = folder / "blobs" / "sha256", _json(folder / "index.json")
    (entry,) = index["manifests"]
    manifest = _json(blobs / _hex(entry))
    (layer,) = manifest["layers"]
    path, times = blobs / _hex(layer), 0
    wrapped = layer["mediaType"].endswith("+gzip")
    if wrapped:
        with path.open("rb") as file:
            times = int.from_bytes(file.read(8)[4:], "little")
    half = blobs / "layer"
    with (
        gzip.open(path) if wrapped else zstd.reader(path) as old,
        half.open("wb") as out,
        gzip.GzipFile("", "wb", compresslevel=0, fileobj=out, mtime=times + 1) as new,
    ):
        shutil.copyfileobj(old, new, _CHUNK)
    with half.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    size = half.stat().st_size
    half.rename(blobs / digest)
    media = f"{_TYPE}.layer.v1.tar+gzip"
    manifest["layers"] = [{"mediaType": media, "digest": f"sha256:{digest}", "size": size}]
    written = _blob(blobs, manifest)
    renamed = {**index, "manifests": [{**entry, **written}]}
    new_index = folder / "index.json.new"
    new_index.write_text(json.dumps(renamed), encoding="utf-8")
    new_index.replace(folder / "index.json")
    for old_blob in (path, blobs / _hex(entry)):
        old_blob.unlink()
    return str(written["digest"])


def _json(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _hex(descriptor: Mapping[str, Any]) -> str:
    return str(descriptor["digest"]).removeprefix("sha256:")


def _platform(platform: Platform) -> dict[str, str]:
    variant = {"variant": "v8"} if platform is Platform.ARM64 else {}
    return {"os": "linux", "architecture": platform.arch, **variant}


def _config(platform: Platform, layer: str, epoch: int, history: str) -> dict[str, Any]:
    created = datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "created": created,
        **_platform(platform),
        "config": {"Env": [_PATH], "Cmd": ["bash"]},
        "rootfs": {"type": "layers", "diff_ids": [layer]},
        "history": [{"created": created, "created_by": history}],
    }


def _blob(blobs: Path, value: Mapping[str, Any]) -> dict[str, str | int]:
    data = json.dumps(value, separators=(",", ":")).encode()
    name = hashlib.sha256(data).hexdigest()
    (blobs / name).write_bytes(data)
    return {"digest": f"sha256:{name}", "size": len(data)}


def _write_layer(tree: Tree, blobs: Path, epoch: int) -> Blob:
    path = blobs / "layer"
    with path.open("wb") as out:
        made = blob.write(tarball.blocks(tree, epoch), out)
    target = path.rename(blobs / made["digest"].removeprefix("sha256:"))
    return Blob(**made, path=target)
