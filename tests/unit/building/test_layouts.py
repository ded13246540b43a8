"""OCI layouts: what is read of them, how they are named, and how they get into an engine."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.images import Images, image
from support.plans import planned

from imagefactory.building import layouts
from imagefactory.errors import CheckFailedError
from imagefactory.planning.cell_plan import LABEL
from imagefactory.planning.decision import Action, decide

PLAN = planned()
CELL = PLAN.cell


def blob(layout: Path, data: bytes) -> dict[str, Any]:
    """Write a blob; returns its descriptor."""
    digest = hashlib.sha256(data).hexdigest()
    folder = layout / "blobs" / "sha256"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / digest).write_bytes(data)
    return {"digest": f"sha256:{digest}", "size": len(data)}


def written(output: Path, *, layer: bytes = b"a layer", key: str = PLAN.build_key) -> str:
    """What BuildKit writes for the cell's image, and its digest."""
    layout = output / CELL.name
    config = {
        "os": "linux",
        "architecture": "arm64",
        "rootfs": {"diff_ids": ["sha256:unpacked"]},
        "config": {"Labels": {f"{LABEL}.build-key": key}, "Env": ["A=b=c"]},
    }
    manifest = {
        "config": blob(layout, json.dumps(config).encode()),
        "layers": [blob(layout, layer)],
    }
    made = blob(layout, json.dumps(manifest).encode())
    index = {"schemaVersion": 2, "manifests": [{**made, "annotations": {"x": "latest"}}]}
    (layout / "index.json").write_text(json.dumps(index))
    return str(made["digest"])


def test_an_image_in_a_folder_is_described_like_one_in_the_engine(tmp_path: Path) -> None:
    digest = written(tmp_path)
    (found,) = layouts.find(tmp_path, [CELL]).values()
    assert (found.ref, found.digest, found.platform) == (CELL.tag, digest, "linux/arm64")
    assert found.layers == ("sha256:unpacked",)
    assert found.env == {"A": "b=c"}
    assert found.size > len(b"a layer")


def test_a_cell_is_unchanged_if_its_layout_has_the_same_build_key(tmp_path: Path) -> None:
    written(tmp_path)
    assert [one.action for one in decide([PLAN], layouts.find(tmp_path, [CELL]))] == [Action.SKIP]
    written(tmp_path, key="another")
    assert [one.action for one in decide([PLAN], layouts.find(tmp_path, [CELL]))] == [Action.BUILD]


@pytest.mark.parametrize("text", [None, "{", "[]", '{"manifests": []}'])
def test_a_damaged_layout_is_no_image(tmp_path: Path, text: str | None) -> None:
    written(tmp_path)
    index = tmp_path / CELL.name / "index.json"
    index.unlink() if text is None else index.write_text(text)
    assert layouts.find(tmp_path, [CELL]) == {}


def test_a_layout_with_an_incomplete_layer_is_no_image(tmp_path: Path) -> None:
    written(tmp_path, layer=b"a layer")
    path = tmp_path / CELL.name / "blobs/sha256" / hashlib.sha256(b"a layer").hexdigest()
    path.write_bytes(b"a la")
    assert layouts.find(tmp_path, [CELL]) == {}


def test_a_finished_layout_has_the_names_of_the_image_and_no_other_blobs(tmp_path: Path) -> None:
    written(tmp_path, layer=b"of an older build")
    digest = written(tmp_path)
    layout = tmp_path / CELL.name
    (layout / "ingest").mkdir()
    layouts.finish(layout, ["me/vllm:one", "ghcr.io/me/vllm:two"])
    rows = json.loads((layout / "index.json").read_text())["manifests"]
    assert [row["digest"] for row in rows] == [digest, digest]
    assert [list(row["annotations"].values()) for row in rows] == [
        ["docker.io/me/vllm:one", "one"],
        ["ghcr.io/me/vllm:two", "two"],
    ]
    assert len(list(layout.glob("blobs/sha256/*"))) == 3
    assert not (layout / "ingest").exists()
    assert layouts.find(tmp_path, [CELL])[CELL.tag].digest == digest


class Loading(Images):
    """An engine that gives every loaded image one digest."""

    def __init__(self, digest: str) -> None:
        super().__init__()
        self.loaded: list[Path] = []
        self.digest = digest

    def load(self, layout: Path) -> None:
        self.loaded.append(layout)

    def inspect_image(self, ref: str) -> Any:
        return replace(image(PLAN), ref=ref, digest=self.digest)


def test_images_are_loaded_by_cell(tmp_path: Path) -> None:
    engine = Loading(written(tmp_path))
    assert layouts.load(engine, tmp_path, [CELL]) == [CELL.tag]
    assert engine.loaded == [tmp_path / CELL.name]


def test_nothing_is_loaded_if_an_image_is_missing(tmp_path: Path) -> None:
    engine = Loading(written(tmp_path))
    other = replace(CELL, name="other", tags=("other:1",))
    with pytest.raises(CheckFailedError) as caught:
        layouts.load(engine, tmp_path, [CELL, other])
    (problem,) = caught.value.problems
    assert (problem.code, problem.where) == ("layout-missing", "other")
    assert f"--output {tmp_path} --select other" in (problem.fix or "")
    assert engine.loaded == []


def test_an_engine_that_changes_the_digest_is_an_error(tmp_path: Path) -> None:
    written(tmp_path)
    with pytest.raises(CheckFailedError) as caught:
        layouts.load(Loading("sha256:other"), tmp_path, [CELL])
    assert caught.value.problems[0].code == "layout-other-digest"
