"""Which digests the builds of this machine gave."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from imagefactory.building import records


def test_every_digest_that_builds_of_a_key_gave_is_remembered(tmp_path: Path) -> None:
    records.add(tmp_path / "builds", "abc", ["sha256:1"])
    records.add(tmp_path / "builds", "abc", ["sha256:2", "sha256:1"])
    records.add(tmp_path / "builds", "def", ["sha256:3"])
    assert records.read(tmp_path / "builds", "abc") == ("sha256:1", "sha256:2")


def test_what_was_never_built_has_none(tmp_path: Path) -> None:
    assert records.read(tmp_path, "abc") == ()


@pytest.mark.parametrize("key", ["", "../../etc/passwd", "a/b"])
def test_a_label_is_not_a_path(tmp_path: Path, key: str) -> None:
    records.add(tmp_path / "builds", key, ["sha256:1"])
    assert [path.name for path in tmp_path.rglob("*.json")] == ["unknown.json"]


@pytest.mark.parametrize("text", ["", "3", "{", '{"a": 1}'])
def test_a_record_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "abc.json").write_text(text)
    assert records.read(tmp_path, "abc") == ()


def test_digests_are_those_of_the_metadata_of_a_bake(tmp_path: Path) -> None:
    row = {"containerimage.digest": "sha256:1", "containerimage.config.digest": "sha256:2"}
    path = tmp_path / "metadata.json"
    path.write_text(json.dumps({"cell": row, "base": {}, "buildx.build.warnings": []}))
    assert records.of_bake(path) == {"cell": ("sha256:1", "sha256:2"), "base": ()}


@pytest.mark.parametrize("text", [None, "", "[]", "3"])
def test_without_metadata_there_are_no_digests(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "metadata.json"
    if text is not None:
        path.write_text(text)
    assert records.of_bake(path) == {}
