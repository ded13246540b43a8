"""Kept notes and blobs that are damaged: nobody trips over them."""

from __future__ import annotations

import hashlib
import json
import threading
import zipfile
import zlib
from pathlib import Path

import pytest
import requests
from remotezip import RangeNotSupported, RemoteIOError
from support.machine import settings
from support.saved_images import layout
from support.whole_images import Node, archive

from imagefactory.errors import SetupError
from imagefactory.locking.lock import Wheel
from imagefactory.verifying.outside import layers
from imagefactory.verifying.outside.inventory import Inventory, Member, Wheels
from imagefactory.verifying.outside.tree import DamagedError


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "3",
        "[]",
        "{}",
        '{"files": []}',
        '{"files": {"a": []}}',
        '{"files": {}, "folders": 3}',
        '{"files": {}, "folders": []}',
        '{"files": {}, "folders": [], "ghosts": []}',
        '{"files": {}, "folders": [], "ghosts": [], "name": "n", "scripts": {}}',
        '{"files": {}, "folders": [], "ghosts": [], "name": "n", "scripts": {}, "sizes": {}, "x": 1}',
    ],
)
def test_a_damaged_inventory_is_made_again(tmp_path: Path, text: str) -> None:
    made = Inventory(name="n", files={"a": Member("aa", 1, True)}, folders=("b",), scripts={})
    wheels = Wheels(settings(tmp_path))
    assert wheels._load("aa") is None
    wheels._save("aa", made)
    assert wheels._load("aa") == made
    (note,) = (tmp_path / "cache/inventories").iterdir()
    note.write_text(text)
    assert wheels._load("aa") is None


def test_processes_may_keep_the_same_inventory_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Inventory(name="n", files={"a": Member("aa", 1, True)}, folders=(), scripts={})
    wheels, done, move = Wheels(settings(tmp_path)), list[str](), Path.replace

    def after_another(part: Path, target: Path) -> Path:
        if not done:
            done.append(part.name)
            other = threading.Thread(target=wheels._save, args=("aa", made))
            other.start()
            other.join()
        return move(part, target)

    monkeypatch.setattr(Path, "replace", after_another)
    wheels._save("aa", made)
    assert wheels._load("aa") == made
    assert [path.name for path in (tmp_path / "cache/inventories").iterdir()] == ["aa.json"]


def blob(folder: Path, text: str) -> str:
    digest = hashlib.sha256(text.encode()).hexdigest()
    (folder / digest).write_text(text)
    return f"sha256:{digest}"


@pytest.mark.parametrize(
    "text",
    [
        "no archive",
        "{",
        "{}",
        '{"layers": []}',
        # engines take the last of these
        '{"layers": [], "config": {"digest": "{0}"}, "Layers": []}',
        '{"layers": [], "config": {"digest": "{0}"}, "layer\u017f": []}',
        '{"layers": [], "layers": [], "config": {"digest": "{0}"}}',
        '{"layers": [], "config": 5}',
        '{"layers": 5, "config": {"digest": "{0}"}}',
        '{"manifests": []}',
        '{"manifests": 5}',
        '{"manifests": [5]}',
        '{"manifests": [{}]}',
        '{"manifests": [{"digest": "{0}", "platform": "x"}]}',
    ],
)
def test_an_image_whose_documents_are_damaged_is_damage(tmp_path: Path, text: str) -> None:
    config = blob(tmp_path, '{"rootfs": {"diff_ids": []}}')
    digest = blob(tmp_path, text.replace("{0}", config))
    with pytest.raises(DamagedError, match="engine's copy"):
        layers.read_folder(tmp_path, digest, tmp_path / "cache")


def test_an_image_that_is_not_all_there_is_asked_for_elsewhere(tmp_path: Path) -> None:
    config = blob(tmp_path, '{"rootfs": {"diff_ids": []}}')
    text = f'{{"layers": [], "config": {{"digest": "{config}"}}}}'
    digest = blob(tmp_path, text)
    found = layers.read_folder(tmp_path, digest, tmp_path / "cache")
    assert found == layers.Contents(config={"rootfs": {"diff_ids": []}}, layers=())
    (tmp_path / config[7:]).unlink()
    assert layers.read_folder(tmp_path, digest, tmp_path / "cache") is None


def test_a_kept_layer_that_goes_meanwhile_is_no_part_of_the_image(tmp_path: Path) -> None:
    layout(tmp_path, archive({"a": Node(data=b"1")}))
    row = json.loads((tmp_path / "index.json").read_text())["manifests"][0]
    cache = tmp_path / "cache"
    cache.mkdir()
    # it is listed, and its stat() says that it is not there
    (cache / "gone.v2").symlink_to("nowhere")
    found = layers.read_folder(tmp_path / "blobs/sha256", row["digest"], cache)
    assert found is not None
    assert list(found.layers[0].entries) == ["a"]


@pytest.mark.parametrize(
    "error",
    [
        requests.ConnectionError("down"),
        RemoteIOError("cut"),
        RangeNotSupported("no ranges"),
        zipfile.BadZipFile("no wheel"),
        zlib.error("invalid block type"),
        NotImplementedError("compression method"),
        KeyError("vllm/gone.py"),
        ValueError("no length"),
        OSError("disk"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_wheel_that_cannot_be_read_is_unreachable_whatever_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fails(*_: object) -> None:
        raise error

    wheels = Wheels(settings(tmp_path))
    monkeypatch.setattr(wheels, "_local", fails)
    wheel = Wheel(name="x", version="1", filename="x.whl", sha256="a" * 64, size=1, index="i")
    with pytest.raises(SetupError, match=f"x.whl is not available: {type(error).__name__}: "):
        wheels._with(wheel, lambda _: None)
