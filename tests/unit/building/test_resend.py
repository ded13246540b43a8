"""A base that a killed build sent half of: it is sent again under another digest."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any, cast

import pytest

from imagefactory.building.debian import layout
from imagefactory.building.resend import HALF_SENT, Resend
from imagefactory.building.tree import Tree
from imagefactory.planning.cell_plan import ROOT
from imagefactory.system import zstd
from imagefactory.system.engine import Engine
from imagefactory.system.platforms import Platform

FAILED = [f"failed to copy: {HALF_SENT}"]


@pytest.fixture
def system(tmp_path: Path) -> Path:
    folder = tmp_path / "system"
    layout.write(
        Tree(), folder, platform=Platform.AMD64, epoch=315532800, history="test", tag="base"
    )
    return folder


def bake_file(folder: Path, *others: str) -> Path:
    (entry,) = json.loads((folder / "index.json").read_text())["manifests"]
    root = f"oci-layout://{folder}@{entry['digest']}"
    file = folder.parent / "bake.json"
    targets = {name: {"contexts": {ROOT: root}} for name in ("builder", *others)}
    file.write_text(json.dumps({"target": {**targets, "cell": {"contexts": {"base": "target:b"}}}}))
    return file


def roots(file: Path) -> list[str]:
    targets = json.loads(file.read_text())["target"].values()
    return [target["contexts"][ROOT] for target in targets if ROOT in target["contexts"]]


def blob(folder: Path, digest: str) -> bytes:
    data = (folder / "blobs" / Path(*digest.split(":"))).read_bytes()
    assert f"sha256:{hashlib.sha256(data).hexdigest()}" == digest
    return data


def layer(folder: Path) -> tuple[dict[str, Any], bytes]:
    (entry,) = json.loads((folder / "index.json").read_text())["manifests"]
    (found,) = json.loads(blob(folder, entry["digest"]))["layers"]
    return found, blob(folder, found["digest"])


def test_a_layer_that_is_wrapped_has_another_digest_each_time_and_the_same_content(
    system: Path,
) -> None:
    before, content = layer(system)
    first = layout.rewrap(system)
    once, wrapped = layer(system)
    second = layout.rewrap(system)
    twice, again = layer(system)
    assert len({before["digest"], once["digest"], twice["digest"]}) == 3
    assert first != second
    assert gzip.decompress(wrapped) == gzip.decompress(again) == zstd.decompress(content)
    assert twice["mediaType"].endswith(".tar+gzip")
    assert len(list((system / "blobs/sha256").iterdir())) == 3


def test_a_bake_file_names_the_new_digest_for_every_target_with_that_system(system: Path) -> None:
    file = bake_file(system, "base")
    before = roots(file)
    assert Resend(file).helps(FAILED)
    (entry,) = json.loads((system / "index.json").read_text())["manifests"]
    assert roots(file) == [f"oci-layout://{system}@{entry['digest']}"] * 2
    assert roots(file) != before


def test_only_a_half_sent_system_is_a_reason_and_only_a_few_times(system: Path) -> None:
    file = bake_file(system)
    resend = Resend(file)
    assert not resend.helps(["exit code: 1"])
    assert [resend.helps(FAILED) for _ in range(4)] == [True, True, True, False]


def test_without_such_a_system_there_is_nothing_to_send_again(tmp_path: Path) -> None:
    file = tmp_path / "bake.json"
    file.write_text(json.dumps({"target": {"cell": {}}}))
    assert not Resend(file).helps(FAILED)


class Loader:
    """Stands for an engine; only a killed build leaves a real one with half of a layer."""

    def __init__(self) -> None:
        self.loaded: list[str] = []

    def load(self, folder: Path) -> None:
        self.loaded.append(folder.name)

    def untag(self, name: str) -> None:
        self.loaded.remove(name.partition(":")[2])


def test_layers_of_an_image_keep_their_digest_and_the_engine_loads_them_meanwhile(
    tmp_path: Path,
) -> None:
    file, engine = tmp_path / "bake.json", Loader()
    contexts = {"packages": "oci-layout:///stacks/key@sha256:1", "builder": "target:b"}
    before = {"target": {name: {"contexts": contexts} for name in ("one", "two")}}
    file.write_text(json.dumps(before))
    resend = Resend(file, cast("Engine", engine))
    assert resend.helps(FAILED)
    assert json.loads(file.read_text()) == before
    assert engine.loaded == ["key"]
    assert not resend.helps(FAILED)  # loading it again would not help either
    resend.end()
    assert engine.loaded == []


def test_another_builder_cannot_be_helped_with_the_layers_of_an_image(tmp_path: Path) -> None:
    file = tmp_path / "bake.json"
    contexts = {"packages": "oci-layout:///stacks/key@sha256:1"}
    file.write_text(json.dumps({"target": {"one": {"contexts": contexts}}}))
    assert not Resend(file).helps(FAILED)
