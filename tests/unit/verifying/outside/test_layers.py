"""Layers on top of each other, and what is read of each: tables without an engine."""

from __future__ import annotations

import io
import json
import os
import tarfile
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from imagefactory.verifying.outside import layers
from imagefactory.verifying.outside.layers import Contents
from imagefactory.verifying.outside.streams import Forward
from imagefactory.verifying.outside.tree import DamagedError, Entry, Layer, merged


def entry(kind: str = "file", *, sha256: str = "aa", link: str = "") -> Entry:
    return Entry(kind, 0o644, "0:0", 1, sha256, link, "")


FILE, FOLDER, LINK = entry(), entry("folder"), entry("link", link="x")
BELOW = Layer(
    entries={"a": FOLDER, "a/x": FILE, "a/b": FOLDER, "a/b/y": FILE, "ab": FILE, "c": FILE},
    texts={"a/x": b"x", "c": b"c"},
)
ALL = set(BELOW.entries)


@pytest.mark.parametrize(
    ("above", "left"),
    [
        ({".wh.c": FILE}, ALL - {"c"}),
        ({"a/.wh.b": FILE}, ALL - {"a/b", "a/b/y"}),
        ({".wh.a": FILE}, {"ab", "c"}),
        ({"a/.wh..wh..opq": FILE}, {"a", "ab", "c"}),
        ({".wh..wh..opq": FILE, "new": FILE}, {"new"}),
        # a file or a link in place of a folder hides what was in it, another folder does not
        ({"a": FILE}, {"a", "ab", "c"}),
        ({"a/b": LINK}, ALL - {"a/b/y"}),
        ({"a": FOLDER}, ALL),
        # what a layer removes and adds is there
        ({"a/.wh.x": FILE, "a/x": LINK}, ALL),
        ({"a/.wh..wh..opq": FILE, "a/x": LINK}, {"a", "a/x", "ab", "c"}),
    ],
)
def test_a_layer_hides_what_it_removes_or_replaces(
    above: Mapping[str, Entry], left: set[str]
) -> None:
    found = merged((BELOW, Layer(entries=above)))
    assert set(found.entries) == left
    own = {path: one for path, one in above.items() if ".wh." not in path}
    assert {path: found.entries[path] for path in own} == own
    assert set(found.texts) == {"a/x", "c"} & left - set(own)


def hard(target: str, **fields: Any) -> Layer:
    made = replace(entry("hard link", link=target), **fields)
    return Layer(entries={"h": made, "c": LINK}, texts={"n": b"n"})


@pytest.mark.parametrize("target", ["a/x", "/a/x", "./a//x"])
def test_a_hard_link_is_the_file_of_a_layer_below(target: str) -> None:
    found = merged((BELOW, hard(target)))
    assert (found.entries["h"], found.texts["h"]) == (FILE, b"x")


@pytest.mark.parametrize(
    ("above", "says"),
    [
        (hard("lost"), "/h is a hard link to /lost, which is not a file"),
        (hard("a"), "/h is a hard link to /a, which is not a file"),
        (hard("../a/x"), "/h is a hard link to ../a/x, which is outside of the image"),
        # an engine gives the file what the header of the link says
        (hard("a/x", mode=0o4644), "/h is a hard link that changes /a/x"),
        (hard("a/x", owner="7:0"), "/h is a hard link that changes /a/x"),
        (hard("a/x", attributes="security.capability=1"), "/h is a hard link that changes /a/x"),
        (Layer(entries={"c/n": FILE}), "a layer has /c/n, and /c is a file"),
        (Layer(entries={"l": LINK, "l/m/n": FILE}), "a layer has /l/m/n, and /l is a link"),
        (Layer(entries={"c/.wh.n": FILE}), "a layer has /c/.wh.n, and /c is a file"),
    ],
)
def test_where_an_engine_would_see_something_else_the_image_is_damaged(
    above: Layer, says: str
) -> None:
    with pytest.raises(DamagedError, match=f"^{says}$"):
        merged((BELOW, above))


def test_hard_links_to_links_and_links_that_become_folders_are_no_damage() -> None:
    links = Layer(entries={"l": LINK, "h": entry("hard link", link="l")})
    assert merged((links,)).entries["h"] == LINK
    folders = Layer(entries={"l": FOLDER, "l/n": FILE})
    assert set(merged((links, folders)).entries) == {"l", "l/n", "h"}


MEMBERS = {
    tarfile.DIRTYPE: "folder",
    tarfile.SYMTYPE: "link",
    tarfile.LNKTYPE: "hard link",
    tarfile.CHRTYPE: "device",
    tarfile.BLKTYPE: "device",
    tarfile.FIFOTYPE: "pipe",
    tarfile.REGTYPE: "file",
}


def read(*members: tuple[tarfile.TarInfo, bytes]) -> Layer:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as written:
        for member, data in members:
            member.size = len(data)
            written.addfile(member, io.BytesIO(data))
    return layers._read_layer(io.BytesIO(out.getvalue()))


def named(name: str, **fields: Any) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(made, field, value)
    return made


def test_every_kind_of_file_is_read_with_all_that_it_has() -> None:
    fields = {"mode": 0o4751, "uid": 3, "gid": 4, "linkname": "a/x"}
    for kind, called in MEMBERS.items():
        data = b"12345" if called == "file" else b""
        (found,) = read((named("./n", type=kind, **fields), data)).entries.values()
        assert (found.kind, found.mode, found.owner) == (called, 0o4751, "3:4")
        assert (found.size, found.sha256[:4]) == ((5, "5994") if called == "file" else (0, ""))
        assert found.link == ("0:0" if called == "device" else "a/x")
    pax = {"SCHILY.xattr.user.b": "2", "SCHILY.xattr.security.capability": "1", "comment": "no"}
    (found,) = read((named("n", pax_headers=pax), b"")).entries.values()
    assert found.attributes == "security.capability=1 user.b=2"


def test_names_are_relative_and_the_root_itself_is_no_file() -> None:
    found = read(*((named(name, type=tarfile.DIRTYPE), b"") for name in (".", "./", "./a/", "b/c")))
    assert list(found.entries) == ["a", "b/c"]


SITE = "opt/venv/lib/python3.13/site-packages"


@pytest.mark.parametrize(
    ("name", "is_kept"),
    [
        ("opt/imagefactory/proofs/a/b.py", True),
        ("opt/venv/pyvenv.cfg", True),
        ("opt/venv/bin/vllm", True),
        (f"{SITE}/a-1.dist-info/RECORD", True),
        (f"{SITE}/a-1.dist-info/entry_points.txt", True),
        ("usr/lib/python3.13/venv/scripts/common/activate", True),
        ("usr/lib/python3.13/venv/scripts/posix/activate.fish", True),
        (f"{SITE}/a-1.dist-info/METADATA", False),
        (f"{SITE}/a/RECORD", False),
        ("opt/venv/bin/a/b", False),
        ("etc/passwd", False),
    ],
)
def test_the_text_of_a_small_file_that_is_judged_by_it_is_kept(
    name: str, is_kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "MOST_TEXT", 4)
    assert read((named(name), b"1234")).texts == ({name: b"1234"} if is_kept else {})
    assert read((named(name), b"12345")).texts == {}


IMAGE = {"config": {"digest": "c"}, "layers": [{"digest": "l"}, {"digest": "k"}]}
OTHER = {"config": {"digest": "d"}, "layers": [{"digest": "k"}]}
CONFIG = {"os": "linux", "rootfs": {"diff_ids": ["unpacked l", "unpacked k"]}}
DOCUMENTS: dict[str, Any] = {
    "m": IMAGE,
    "o": OTHER,
    "c": CONFIG,
    "d": {**CONFIG, "os": "other"},
    "i": {
        "manifests": [
            {"digest": "o", "platform": {"architecture": "unknown"}},  # an attestation
            {"digest": "not saved"},
            {"digest": "m", "platform": {"architecture": "amd64"}},
        ]
    },
    "index.json": {"manifests": [{"digest": "o"}, {"digest": "m"}]},
}
LAYERS = {
    "l": replace(BELOW, unpacked="unpacked l"),
    "k": Layer(entries={}, unpacked="unpacked k"),
}


@pytest.mark.parametrize("digest", ["m", "i", "c"])
def test_an_image_is_named_by_its_manifest_its_index_or_its_configuration(digest: str) -> None:
    wanted = Contents(config=CONFIG, layers=(LAYERS["l"], LAYERS["k"]))
    assert layers._assembled(digest, DOCUMENTS, LAYERS) == wanted


@pytest.mark.parametrize(
    ("digest", "changes"),
    [
        ("x", {}),
        ("m", {"c": None}),
        ("m", {"c": {"os": "linux"}}),
        ("m", {"c": {"rootfs": []}}),
        ("m", {"m": {**IMAGE, "layers": [{"digest": "lost"}]}}),
        ("m", {"m": {**IMAGE, "layers": [3]}}),
        ("i", {"i": {"manifests": []}}),
        ("i", {"i": {"manifests": [{"digest": "o", "platform": {"architecture": "unknown"}}]}}),
        ("c", {"index.json": None}),
        ("c", {"index.json": {"manifests": [{"digest": "o"}]}}),
    ],
)
def test_an_image_that_lacks_a_part_is_damaged(digest: str, changes: Mapping[str, Any]) -> None:
    left = {k: v for k, v in {**DOCUMENTS, **changes}.items() if v is not None}
    with pytest.raises(DamagedError, match="lacks a part"):
        layers._assembled(digest, left, LAYERS)


def test_of_several_images_an_engine_chooses_one_so_none_is_judged() -> None:
    rows = [{"digest": name, "platform": {"architecture": name}} for name in "om"]
    with pytest.raises(DamagedError, match="an index has 2 images, of which an engine chooses"):
        layers._assembled("i", {**DOCUMENTS, "i": {"manifests": rows}}, LAYERS)


#: A note of a version that did not compare the digests of unpacked layers.
NO_DIGEST = b'{"entries": {}, "texts": {}}'


def test_what_is_kept_of_a_layer_is_all_of_it_and_a_damaged_note_is_none(tmp_path: Path) -> None:
    odd = Layer(entries={"\udcff": FILE, "b": LINK}, texts={"b": bytes(range(256))}, unpacked="u")
    layers._save(tmp_path, "sha256:a", odd)
    assert layers._load(tmp_path, "sha256:a") == odd
    (note,) = tmp_path.iterdir()
    rows = (b"[]", b"{}", b"{", b'{"entries": []}', b'{"entries": {"a": [1]}}', NO_DIGEST)
    for data in (b"", b"x", *map(zlib.compress, rows)):
        note.write_bytes(data)
        assert layers._load(tmp_path, "sha256:a") is None
    assert layers._load(tmp_path, "sha256:b") is None


def test_the_layers_that_were_read_last_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "KEPT", 2)
    for number, name in enumerate("abc"):
        layers._save(tmp_path, name, BELOW)
        os.utime(layers._path(tmp_path, name), (number, number))
    layers._save(tmp_path, "d", BELOW)
    assert [name for name in "abcd" if layers._load(tmp_path, name)] == ["c", "d"]


@pytest.mark.parametrize(
    "index", [None, "{", "{}", "[]", '{"manifests": []}', '{"manifests": [5]}']
)
def test_a_folder_that_is_no_layout_is_damage(tmp_path: Path, index: str | None) -> None:
    (tmp_path / "blobs/sha256").mkdir(parents=True)
    if index is not None:
        (tmp_path / "index.json").write_text(index)
    with pytest.raises(DamagedError, match="not an OCI layout"):
        layers.read_layout(tmp_path, tmp_path / "cache")


def test_a_document_with_another_digest_is_not_believed(tmp_path: Path) -> None:
    for name, value in (("1" * 64, IMAGE), ("2" * 64, {"os": "linux"})):
        path = tmp_path / "blobs/sha256" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value))
    row = {"digest": f"sha256:{'1' * 64}"}
    (tmp_path / "index.json").write_text(json.dumps({"manifests": [row]}))
    with pytest.raises(DamagedError, match="lacks a part"):
        layers.read_layout(tmp_path, tmp_path / "cache")
    assert layers.read_folder(tmp_path / "none", "sha256:1", tmp_path / "cache") is None


def test_a_stream_moves_forward_only_and_knows_where_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("imagefactory.verifying.outside.streams.CHUNK", 4)
    stream = Forward(io.BytesIO(b"0123456789ab"))
    assert (stream.read(2), stream.tell()) == (b"01", 2)
    assert (stream.read(1), stream.read(4), stream.tell()) == (b"2", b"3456", 7)
    assert (stream.seek(9), stream.read(2)) == (9, b"9a")
    with pytest.raises(OSError, match="from its beginning"):
        stream.seek(3)
    assert (stream.seek(20), stream.tell(), stream.read(5)) == (12, 12, b"")
