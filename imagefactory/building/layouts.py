"""Images as OCI layouts in a folder, one for each cell: nothing of them is in the engine.

Such a folder is what ``skopeo copy oci:FOLDER:TAG`` and ``docker load`` read.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from imagefactory.errors import CheckFailedError, fail
from imagefactory.matrix.cell import Cell
from imagefactory.system import files
from imagefactory.system.engine import Engine, ImageInfo

#: How containerd and Docker name an image in a layout, and how OCI does.
FULL_NAME, TAG = "io.containerd.image.name", "org.opencontainers.image.ref.name"


def folder_of(output: Path, cell: Cell) -> Path:
    """The layout of a cell's image below ``output``."""
    return output / cell.name


def find(output: Path, cells: Iterable[Cell]) -> dict[str, ImageInfo]:
    """The images of ``cells`` below ``output``, by the cell's tag; a damaged layout is none."""
    found = {}
    for cell in cells:
        try:
            found[cell.tag] = _read(folder_of(output, cell), cell.tag)
        except (OSError, ValueError, KeyError, IndexError, TypeError):
            continue
    return found


def _read(layout: Path, ref: str) -> ImageInfo:
    digest = str(_index(layout)["manifests"][0]["digest"])
    manifest = _blob(layout, digest)
    config = _blob(layout, str(manifest["config"]["digest"]))
    parts = [manifest["config"], *manifest["layers"]]
    if any(_path(layout, part["digest"]).stat().st_size != part["size"] for part in parts):
        raise ValueError(f"{layout} is incomplete")
    settings = config.get("config", {})
    pairs = (pair.partition("=") for pair in settings.get("Env") or ())
    return ImageInfo(
        ref=ref,
        digest=digest,
        layers=tuple(config["rootfs"]["diff_ids"]),
        platform=f"{config['os']}/{config['architecture']}",
        labels=settings.get("Labels") or {},
        env={name: value for name, _, value in pairs},
        size=sum(int(part["size"]) for part in parts),
    )


def write_index(layout: Path, digest: str, size: int, media_type: str) -> None:
    """Make the manifest ``digest``, a blob of ``layout``, what the layout has."""
    row = {"mediaType": media_type, "digest": digest, "size": size}
    files.write_text(
        layout / "index.json", json.dumps({"schemaVersion": 2, "manifests": [row]}) + "\n"
    )
    (layout / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}', encoding="utf-8")


def finish(layout: Path, tags: Iterable[str]) -> None:
    """Name the image that was just written to ``layout``, and remove the blobs of older ones."""
    row = _index(layout)["manifests"][-1]
    keep = {row["digest"], *_parts(layout, row["digest"])}
    for path in layout.glob("blobs/sha256/*"):
        if f"sha256:{path.name}" not in keep:
            path.unlink()
    shutil.rmtree(layout / "ingest", ignore_errors=True)
    rows = [{**row, "annotations": names_of(tag)} for tag in tags]
    index = {"schemaVersion": 2, "manifests": rows}
    (layout / "index.json").write_text(json.dumps(index) + "\n", encoding="utf-8")


def names_of(tag: str) -> dict[str, str]:
    """The annotations by which programs know the image ``tag`` in a layout."""
    return {FULL_NAME: _full(tag), TAG: tag.rpartition(":")[2]}


def short(name: str) -> str:
    """A full name as Docker shows it."""
    return name.removeprefix("docker.io/").removeprefix("library/")


def _full(tag: str) -> str:
    """``tag`` with its registry, which Docker leaves out of names on Docker Hub."""
    first, _, rest = tag.partition("/")
    if rest and ("." in first or ":" in first or first == "localhost"):
        return tag
    return f"docker.io/{tag if rest else f'library/{tag}'}"


def load(engine: Engine, output: Path, cells: Iterable[Cell]) -> list[str]:
    """Load the images of ``cells`` into the engine; returns their tags.

    Raises CheckFailedError ``layout-missing`` if ``output`` has no image of a cell, before
    anything is loaded, and ``layout-other-digest`` if the engine has another image then.
    """
    wanted = list(cells)
    there = find(output, wanted)
    for cell in wanted:
        if cell.tag not in there:
            raise fail(
                CheckFailedError,
                "layout-missing",
                f"{folder_of(output, cell)} is not the OCI layout of an image",
                where=cell.name,
                fix=f"imagefactory build --matrix --output {output} --select {cell.name}",
            )
    for cell in wanted:
        engine.load(folder_of(output, cell))
        loaded = engine.inspect_image(cell.tag).digest
        if loaded != there[cell.tag].digest:
            raise fail(
                CheckFailedError,
                "layout-other-digest",
                f"{cell.tag} is {loaded} in the engine, {there[cell.tag].digest} in {output}",
                where=cell.name,
                fix="the engine needs the containerd image store, which keeps digests",
            )
    return [cell.tag for cell in wanted]


def _index(layout: Path) -> dict[str, Any]:
    index: dict[str, Any] = json.loads((layout / "index.json").read_text(encoding="utf-8"))
    return index


def _parts(layout: Path, digest: str) -> Iterator[str]:
    manifest = _blob(layout, digest)
    yield from (part["digest"] for part in (manifest["config"], *manifest["layers"]))


def _path(layout: Path, digest: str) -> Path:
    return layout / "blobs" / Path(*digest.split(":"))


def _blob(layout: Path, digest: str) -> dict[str, Any]:
    blob: dict[str, Any] = json.loads(_path(layout, digest).read_text(encoding="utf-8"))
    return blob
