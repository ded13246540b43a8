"""What an image has is read from its layers in their order, and only once."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard
from support.debs import folder, hard_link, symlink, tar
from support.image_layers import debian
from support.machine import settings
from support.registry import FakeRegistry, digest_of, fake_registry

from imagefactory.errors import SetupError
from imagefactory.locking.debian import skeleton
from imagefactory.locking.debian.skeleton import Skeleton
from imagefactory.system.registry import Registries

BOTTOM = debian(
    files={
        "etc": folder(),
        "etc/removed": "1",
        "etc/changed": "old",
        "opt/all/one": "1",
        "opt/gone/deep/file": "1",
        "usr/bin/tool": "a program",
        "usr/bin/again": hard_link("usr/bin/tool"),
        "bin": symlink("usr/bin"),
    }
)
TOP = tar(
    {
        "etc/.wh.removed": "",
        "etc/changed": "new",
        "opt/all/.wh..wh..opq": "",
        "opt/all/two": "2",
        "opt/.wh.gone": "",
    }
)


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with fake_registry() as made:
        yield made


def read(registry: FakeRegistry, tmp_path: Path, *layers: bytes) -> Skeleton:
    registry.put_image("x", "1", "linux/amd64", layers=layers)
    digest = digest_of(registry.manifests["x", "1-amd64"])
    name, where = f"{registry.address}/x:1", settings(tmp_path)
    return skeleton.read(name, digest, Registries(tmp_path), where)


def test_upper_layers_change_and_remove_what_lower_ones_have(
    registry: FakeRegistry, tmp_path: Path
) -> None:
    found = read(registry, tmp_path, gzip.compress(BOTTOM), zstandard.compress(TOP))
    files = {path for path, node in found.nodes.items() if not node.header.isdir()}
    assert files == {
        *("etc/changed", "opt/all/two", "usr/bin/tool", "usr/bin/again", "bin"),
        *("usr/lib/os-release", "var/lib/dpkg/status"),
    }
    assert found.nodes["etc/changed"].content == b"new"
    assert found.nodes["bin"].header.linkname == "usr/bin"
    assert found.distribution["VERSION_CODENAME"] == "trixie"
    assert (found.status or "").startswith("Package: apt\n")


def test_programs_are_known_without_their_content(registry: FakeRegistry, tmp_path: Path) -> None:
    found = read(registry, tmp_path, BOTTOM)
    for name in ("usr/bin/tool", "usr/bin/again"):
        assert found.nodes[name].content == b""
        assert found.nodes[name].header.uname == skeleton.LEFT_OUT


def test_layers_are_read_once(registry: FakeRegistry, tmp_path: Path) -> None:
    first = read(registry, tmp_path, BOTTOM, TOP)
    registry.contents.clear()
    digest = digest_of(registry.manifests["x", "1-amd64"])
    again = skeleton.read("x", digest, Registries(tmp_path), settings(tmp_path))
    assert again.nodes.keys() == first.nodes.keys()
    assert again.status == first.status


@pytest.mark.parametrize(
    "layer",
    [b"", b"no archive" * 100, gzip.compress(BOTTOM)[:60]],
    ids=["empty", "text", "cut off"],
)
def test_a_layer_that_is_no_archive_is_a_clear_error(
    registry: FakeRegistry, tmp_path: Path, layer: bytes
) -> None:
    with pytest.raises(SetupError) as caught:
        read(registry, tmp_path, layer)
    assert caught.value.problems[0].code == "base-unreadable"


def test_a_layer_with_other_content_is_an_error(registry: FakeRegistry, tmp_path: Path) -> None:
    registry.put_image("x", "1", "linux/amd64", layers=[BOTTOM])
    registry.contents["x", digest_of(BOTTOM)] = TOP
    digest = digest_of(registry.manifests["x", "1-amd64"])
    with pytest.raises(SetupError) as caught:
        skeleton.read(f"{registry.address}/x", digest, Registries(tmp_path), settings(tmp_path))
    assert caught.value.problems[0].code == "registry-failed"
    assert list((tmp_path / "cache").rglob("*.tar")) == []
