"""What an image has is read from its layers in their order, and only once."""

from __future__ import annotations

import gzip
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard
from support.debs import Member, folder, hard_link, symlink, tar
from support.image_layers import debian
from support.machine import settings
from support.registry import FakeRegistry, digest_of, fake_registry

from imagefactory.errors import SetupError
from imagefactory.locking.debian import archive, skeleton
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


#: What a layer has: its type, mode, owner and group, the link's target, the owner's name, content.
MEMBERS: dict[str, tuple[Member, tuple[object, ...]]] = {
    "etc/kept": (
        Member(kind=tarfile.REGTYPE, mode=0o640, uid=3, gid=4, content=b"x"),
        (tarfile.REGTYPE, 0o640, 3, 4, "", "", b"x"),
    ),
    "etc/again": (hard_link("etc/kept"), (tarfile.REGTYPE, 0o640, 3, 4, "", "", b"x")),
    "usr/bin/a": (Member(content=b"x"), (tarfile.REGTYPE, 0o644, 0, 0, "", "left-out", b"")),
    "etc/empty": (Member(content=b""), (tarfile.REGTYPE, 0o644, 0, 0, "", "", b"")),
    "etc/large": (Member(content=b"12345678"), (tarfile.REGTYPE, 0o644, 0, 0, "", "left-out", b"")),
    "etc/folder": (folder(0o700), (tarfile.DIRTYPE, 0o700, 0, 0, "", "", b"")),
    "etc/link": (symlink("../x"), (tarfile.SYMTYPE, 0o777, 0, 0, "../x", "", b"")),
    "etc/device": (Member(kind=tarfile.CHRTYPE), (tarfile.CHRTYPE, 0o644, 0, 0, "", "", b"")),
}


def test_the_header_of_every_path_is_kept_and_the_content_of_small_files_that_are_read(
    registry: FakeRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(skeleton, "_LARGEST", 7)
    layer = tar({name: member for name, (member, _) in MEMBERS.items()})
    for _ in range(2):  # from the registry, then from the cache
        found = read(registry, tmp_path, layer).nodes
        assert found.keys() == MEMBERS.keys()
        for name, (_, expected) in MEMBERS.items():
            one, content = found[name].header, found[name].content
            row = (one.type, one.mode, one.uid, one.gid, one.linkname, one.uname, content)
            assert row == expected, name


@pytest.mark.parametrize(
    ("path", "is_kept"),
    [
        ("etc/passwd", True),
        ("var/lib/dpkg/info/apt.list", True),
        ("var/lib/dpkg-more", True),
        ("var/lib/pam/x", True),
        ("var/lib/shells.state", True),
        ("usr/lib/os-release", True),
        *((f"usr/share/{one}/x", True) for one in ("base-passwd", "ca-certificates", "pam")),
        *((f"usr/share/{one}/x", True) for one in ("debianutils", "pam-configs")),
        ("usr/share/doc/x", False),
        ("usr/lib/os-release-more", False),
        ("srv/etc/passwd", False),
        ("var/lib/apt/x", False),
    ],
)
def test_files_that_package_tools_keep_are_read(
    registry: FakeRegistry, tmp_path: Path, path: str, is_kept: bool
) -> None:
    assert read(registry, tmp_path, tar({path: "x"})).nodes[path].content == b"x" * is_kept


@pytest.mark.parametrize(
    ("bottom", "top", "left"),
    [
        ({"_a": "1", "b": "1"}, {".wh._a": ""}, {"b"}),
        ({"a/b": "1", "ab": "1"}, {".wh.a": ""}, {"ab"}),
        ({"a/b": "1", "a/c": "1"}, {"a/.wh.b": ""}, {"a/c"}),
        ({"a": folder(), "a/b": "1"}, {"a": "1"}, {"a"}),
        ({"a": folder(), "a/b": "1"}, {"a": folder()}, {"a", "a/b"}),
        ({"a": "1"}, {"../b": "1", "..c/d": "1"}, {"a"}),
        ({"a/b": "1"}, {".//a//./b": "2"}, {"a/b"}),
        ({"a/b": "1", "c": "1"}, {"a/.wh..wh..opq": "", "a/d": "1"}, {"a/d", "c"}),
        ({"a": "1"}, {"b": hard_link("a"), "c": hard_link("none")}, {"a", "b", "c"}),
    ],
)
def test_a_layer_removes_and_replaces_exactly_what_it_says(
    registry: FakeRegistry,
    tmp_path: Path,
    bottom: dict[str, str | Member],
    top: dict[str, str | Member],
    left: set[str],
) -> None:
    assert read(registry, tmp_path, tar(bottom), tar(top)).nodes.keys() == left


@pytest.mark.parametrize(
    ("files", "fields"),
    [
        ({"usr/lib/os-release": "ID=a", "etc/os-release": "ID=b"}, {"ID": "a"}),
        ({"etc/os-release": " ID = 'a b'\n# x\nN=\"1=2\"\n"}, {"ID": "a b", "N": "1=2"}),
        ({}, {}),
    ],
)
def test_the_fields_of_os_release_are_read_without_quotes(
    registry: FakeRegistry, tmp_path: Path, files: dict[str, str], fields: dict[str, str]
) -> None:
    found = read(registry, tmp_path, tar(files))
    assert found.distribution == fields
    assert found.status is None


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


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("usr/lib/os-release", {"ID": "debian", "NAME": "_J\ufffd_", "EMPTY": ""}),
        ("etc/os-release", {"ID": "debian", "NAME": "_J\ufffd_", "EMPTY": ""}),
        ("etc/other", {}),
    ],
)
def test_the_distribution_is_read_from_os_release_whatever_bytes_it_has(
    path: str, found: dict[str, str]
) -> None:
    content = b"ID='debian'\n# no\nNAME=\"_J\xfc_\"\n EMPTY = \n"
    node = skeleton.Node(header=tarfile.TarInfo(path), content=content)
    made = Skeleton(nodes={path: node, skeleton.STATUS: node})
    assert made.distribution == found
    assert (made.status or "").encode(errors="surrogateescape") == content
    assert Skeleton(nodes={path: node}).status is None


@pytest.mark.parametrize(
    ("name", "text", "mirror"),
    [
        ("sources.list", "# J\xfc\ndeb https://a.example/debian trixie main\n", "https://a"),
        ("sources.list", "deb https://a.example/debian/ trixie main\n", "https://a"),
        ("sources.list.d/x.sources", "URIs: http://b.example/debian\n", "http://b"),
        ("sources.list.d/x.list", "deb http://b.example/debian trixie main\n", "http://b"),
        ("sources.list.d/x.save", "deb http://b.example/debian trixie main\n", ""),
        ("sources.list", "# deb http://b.example/debian trixie main\n", ""),
        ("sources.list", "deb http://b.example/debian-security trixie main\n", ""),
    ],
)
def test_the_mirror_is_that_of_the_machines_own_lists(
    tmp_path: Path, name: str, text: str, mirror: str
) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / name).write_bytes(text.encode("latin-1"))
    found = archive._mirror_of_apt("debian", tmp_path)
    assert found == (f"{mirror}.example/debian" if mirror else None)
