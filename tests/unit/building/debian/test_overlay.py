"""Packages that are added to an image give what installing all of them at once gives."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest
from support.debs import Member, deb, folder, library, symlink

from imagefactory.building.debian import debian, overlay
from imagefactory.building.debian.debian import Assembled
from imagefactory.errors import InputError
from imagefactory.locking.debian.skeleton import Node, Skeleton
from imagefactory.system import zstd
from imagefactory.system.platforms import Platform

EPOCH = 315532800
LIB = "usr/lib/x86_64-linux-gnu"
ALTERNATIVES = "#!/bin/sh\nset -e\n# Automatically added by dh_installalternatives/13\n{}# End automatically added section\n"


def libc(to: Path) -> Path:
    """Everything that later packages meet: libraries, folders, a program, an alternative."""
    files: dict[str, str | bytes | Member] = {
        "bin": folder(),
        "etc": folder(),
        "etc/ld.so.conf": "",
        "etc/one.conf": "a = 1\n",
        "bin/one": Member(content=b"#!/bin/sh\n", mode=0o755),
        f"{LIB}/libone.so.1.2": library("libone.so.1"),
        f"{LIB}/libone.so.1": symlink("libone.so.1.2"),
    }
    control = {
        "conffiles": "/etc/one.conf\n",
        "triggers": "interest-noawait /usr/lib/plugins\n",
        "postinst": ALTERNATIVES.format(
            "update-alternatives --install /usr/bin/do do /usr/bin/one 10\n"
        ),
    }
    return deb(to, "libc-bin", files, version="2.41-1", control=control)


def more(to: Path) -> list[Path]:
    """A library, its development link, and a better alternative."""
    two: dict[str, str | bytes | Member] = {
        f"{LIB}/libtwo.so.2": library("libtwo.so.2"),
        f"{LIB}/libone.so": symlink("libone.so.1"),
    }
    three = {"bin/three": Member(content=b"#!/bin/sh\n", mode=0o755)}
    script = ALTERNATIVES.format("update-alternatives --install /usr/bin/do do /usr/bin/three 20\n")
    triggers = {"triggers": "interest /usr/lib/plugins\n"}
    return [
        deb(to, "libtwo2", two, fields={"Multi-Arch": "same"}, control=triggers),
        deb(to, "three", three, control={"postinst": script}),
    ]


def assemble(files: list[Path], to: Path) -> Assembled:
    return debian.assemble(files, platform=Platform.AMD64, suite="trixie", epoch=EPOCH, folder=to)


def add(files: list[Path], image: Skeleton, to: Path) -> Assembled:
    return overlay.assemble(files, image, platform=Platform.AMD64, epoch=EPOCH, folder=to)


def content(made: Assembled) -> dict[str, tuple[tarfile.TarInfo, bytes]]:
    path = made.folder / "blobs" / "sha256" / made.layer.removeprefix("sha256:")
    data = zstd.decompress(path.read_bytes())
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        rows = {}
        for member in archive:
            stream = archive.extractfile(member) if member.isreg() else None
            rows[member.name] = member, stream.read() if stream else b""
        return rows


def facts(rows: dict[str, tuple[tarfile.TarInfo, bytes]]) -> dict[str, object]:
    return {
        path: (member.type, member.mode, member.uid, member.gid, member.linkname, data)
        for path, (member, data) in rows.items()
    }


def skeleton_of(made: Assembled) -> Skeleton:
    """As of an image in a registry: libraries and programs have no content."""
    return Skeleton(
        nodes={
            path: Node(header=member, content=b"" if path.startswith("usr/") else data)
            for path, (member, data) in content(made).items()
        }
    )


@pytest.fixture
def image(tmp_path: Path) -> Assembled:
    return assemble([libc(tmp_path / "debs")], tmp_path / "image")


def test_packages_added_to_an_image_give_the_files_of_installing_all_at_once(
    image: Assembled, tmp_path: Path
) -> None:
    added = add(more(tmp_path / "debs"), skeleton_of(image), tmp_path / "layer")
    whole = assemble([libc(tmp_path), *more(tmp_path)], tmp_path / "whole")
    both = {**content(image), **content(added)}
    assert facts(both) == facts(content(whole))
    assert both["etc/alternatives/do"][0].linkname == "/usr/bin/three"
    assert b"libtwo.so.2" in both["etc/ld.so.cache"][1]


def test_the_layer_has_only_what_is_new_and_is_the_same_everywhere(
    image: Assembled, tmp_path: Path
) -> None:
    one = add(more(tmp_path / "debs"), skeleton_of(image), tmp_path / "layer")
    two = add(more(tmp_path / "x")[::-1], skeleton_of(image), tmp_path / "deeper" / "layer")
    assert one.digest == two.digest
    rows = content(one)
    assert "usr/bin/one" not in rows
    assert "etc/one.conf" not in rows
    assert f"{LIB}/libone.so.1.2" not in rows
    index = json.loads((one.folder / "index.json").read_text())
    assert index["manifests"][0]["digest"] == one.digest


def test_a_newer_version_replaces_an_older_one_but_no_changed_configuration(
    image: Assembled, tmp_path: Path
) -> None:
    files = {"bin/one": "new", "etc/one.conf": "b = 2\n"}
    newer = deb(
        tmp_path, "libc-bin", files, version="2.41-2", control={"conffiles": "/etc/one.conf\n"}
    )
    found = skeleton_of(image)
    assert "etc/one.conf" in content(add([newer], found, tmp_path / "first"))
    changed = Node(header=found.nodes["etc/one.conf"].header, content=b"mine\n")
    mine = Skeleton(nodes={**found.nodes, "etc/one.conf": changed})
    rows = content(add([newer], mine, tmp_path / "second"))
    assert rows["usr/bin/one"][1] == b"new"
    assert "etc/one.conf" not in rows
    status = rows["var/lib/dpkg/status"][1].decode()
    assert status.count("Package: libc-bin") == 1
    assert "Version: 2.41-2" in status


def test_a_file_of_a_package_in_the_image_is_not_overwritten(
    image: Assembled, tmp_path: Path
) -> None:
    other = deb(tmp_path, "other", {"bin/one": "mine"})
    with pytest.raises(InputError) as caught:
        add([other], skeleton_of(image), tmp_path / "layer")
    (problem,) = caught.value.problems
    assert problem.code == "deb-file-conflict"
    assert problem.what == "/usr/bin/one of other is a file of libc-bin in the image"
    replacing = deb(tmp_path, "other", {"bin/one": "mine"}, fields={"Replaces": "libc-bin"})
    rows = content(add([replacing], skeleton_of(image), tmp_path / "layer"))
    assert rows["usr/bin/one"][1] == b"mine"


def test_a_script_that_nobody_reviewed_is_refused(image: Assembled, tmp_path: Path) -> None:
    bad = deb(tmp_path, "bad", control={"postinst": "#!/bin/sh\nreboot\n"})
    with pytest.raises(InputError) as caught:
        add([bad], skeleton_of(image), tmp_path / "layer")
    assert caught.value.problems[0].code == "deb-script"
    assert not (tmp_path / "layer").exists()


def test_an_image_without_a_merged_usr_is_refused(image: Assembled, tmp_path: Path) -> None:
    nodes = {path: node for path, node in skeleton_of(image).nodes.items() if path != "bin"}
    with pytest.raises(InputError) as caught:
        add(more(tmp_path), Skeleton(nodes=nodes), tmp_path / "layer")
    assert caught.value.problems[0].code == "base-not-merged"
