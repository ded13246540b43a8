from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from support.debs import Member, deb, folder, hard_link, symlink

from imagefactory.building.debian import debian
from imagefactory.building.debian.debian import Assembled
from imagefactory.errors import InputError
from imagefactory.system import zstd
from imagefactory.system.platforms import Platform

EPOCH = 315532800
#: Of the image that `sample` makes: a change means that every base must be pushed again.
DIGEST = "sha256:d756f30ffedfa543252835f4a8957be14ab3ee2bd2bb7268cab7f2b46d93e343"


def assemble(files: list[Path], to: Path, platform: Platform = Platform.AMD64) -> Assembled:
    return debian.assemble(files, platform=platform, suite="trixie", epoch=EPOCH, folder=to)


def blob(image: Assembled, digest: str) -> Path:
    return image.folder / "blobs" / "sha256" / digest.removeprefix("sha256:")


def unpacked(image: Assembled) -> bytes:
    return zstd.decompress(blob(image, image.layer).read_bytes())


def opened(image: Assembled) -> tarfile.TarFile:
    return tarfile.open(fileobj=io.BytesIO(unpacked(image)))


def members(image: Assembled) -> dict[str, tarfile.TarInfo]:
    with opened(image) as archive:
        return {member.name: member for member in archive}


def text(image: Assembled, path: str) -> str:
    with opened(image) as archive:
        stream = archive.extractfile(path)
        assert stream
        return stream.read().decode()


def problems(caught: pytest.ExceptionInfo[InputError]) -> list[str]:
    return [problem.what for problem in caught.value.problems]


def sample(to: Path) -> list[Path]:
    """Two packages with one of everything."""
    one = deb(
        to,
        "one",
        {
            "bin": folder(),
            "bin/one": Member(content=b"#!/bin/sh\n", mode=0o4755, gid=42),
            "bin/uno": hard_link("bin/one"),
            "etc": folder(),
            "etc/one.conf": "a = 1\n",
            "usr": folder(),
            "usr/lib": folder(),
            "usr/lib/one": symlink("../bin/one"),
            "usr/share/doc/one/copyright": "licence",
            "usr/share/doc/one/changelog.gz": "changes",
            "usr/share/man/man1/one.1.gz": "manual",
            "var/lib/apt/lists/partial": "",
        },
        control={
            "conffiles": "/etc/one.conf\n",
            "md5sums": f"{'0' * 32}  bin/one\n{'1' * 32}  usr/share/man/man1/one.1.gz\n",
            "postinst": "#!/bin/sh\nset -e\n",
            "triggers": "interest-noawait /usr/lib/plugins\ninterest refresh\n",
        },
    )
    two = deb(to, "two", {"etc": folder(0o700), "etc/two": ""}, arch="all")
    return [one, two]


def test_the_same_packages_give_the_same_bytes_wherever_and_in_whatever_order(
    tmp_path: Path,
) -> None:
    first = assemble(sample(tmp_path / "debs"), tmp_path / "first")
    moved = assemble(sample(tmp_path / "other")[::-1], tmp_path / "deeper" / "second")
    assert first.digest == moved.digest == DIGEST
    assert (first.folder / "index.json").read_bytes() == (moved.folder / "index.json").read_bytes()


def test_an_image_is_a_layout_that_names_its_platform_command_and_dates(tmp_path: Path) -> None:
    arm = deb(tmp_path, "one", {"etc/one": "1"}, arch="arm64")
    image = assemble([arm], tmp_path / "image", Platform.ARM64)
    index = json.loads((image.folder / "index.json").read_text())
    manifest: dict[str, Any] = json.loads(blob(image, index["manifests"][0]["digest"]).read_text())
    config = json.loads(blob(image, manifest["config"]["digest"]).read_text())
    assert index["manifests"][0]["platform"] == {
        "os": "linux",
        "architecture": "arm64",
        "variant": "v8",
    }
    assert (config["architecture"], config["config"]["Cmd"]) == ("arm64", ["bash"])
    assert config["created"] == "1980-01-01T00:00:00Z"
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(unpacked(image)).hexdigest()}"]
    assert blob(image, image.layer).stat().st_size == manifest["layers"][0]["size"] == image.size
    assert {member.mtime for member in members(image).values()} == {EPOCH}


def test_files_keep_modes_owners_and_hard_links_in_a_merged_usr(tmp_path: Path) -> None:
    found = members(assemble(sample(tmp_path / "debs"), tmp_path / "image"))
    assert (found["bin"].issym(), found["bin"].linkname) == (True, "usr/bin")
    assert (found["usr/bin/one"].mode, found["usr/bin/one"].gid) == (0o4755, 42)
    assert (found["usr/bin/uno"].islnk(), found["usr/bin/uno"].linkname) == (True, "usr/bin/one")
    assert found["usr/lib/one"].linkname == "../bin/one"
    assert found["etc"].mode == 0o755  # the first package's
    assert not any(member.uname for member in found.values())


def test_documentation_is_left_out_but_licences_stay(tmp_path: Path) -> None:
    linked = {"usr/share/doc/one-dev": symlink("one"), "usr/share/doc/one/x": symlink("y")}
    files = [*sample(tmp_path / "debs"), deb(tmp_path, "one-dev", linked)]
    found = members(assemble(files, tmp_path / "image"))
    assert [path for path in found if path.startswith("usr/share/doc/")] == [
        "usr/share/doc/one",
        "usr/share/doc/one-dev",
        "usr/share/doc/one/copyright",
    ]
    assert "usr/share/man/man1/one.1.gz" not in found
    assert "var/lib/apt/lists/partial" not in found


def test_the_database_lists_what_is_installed_and_no_more(tmp_path: Path) -> None:
    image = assemble(sample(tmp_path / "debs"), tmp_path / "image")
    info = "var/lib/dpkg/info/one"
    assert text(image, f"{info}.list").splitlines() == [
        *("/.", "/bin", "/bin/one", "/bin/uno", "/etc", "/etc/one.conf", "/usr", "/usr/lib"),
        *("/usr/lib/one", "/usr/share/doc/one/copyright"),
    ]
    assert text(image, f"{info}.md5sums") == f"{'0' * 32}  bin/one\n"
    assert members(image)[f"{info}.postinst"].mode == 0o755
    status = text(image, "var/lib/dpkg/status").split("\n\n")
    assert status[0].splitlines() == [
        "Package: one",
        "Status: install ok installed",
        "Maintainer: Somebody <a@b.example>",
        "Architecture: amd64",
        "Version: 1.0",
        "Conffiles:",
        " /etc/one.conf 9358f2568f3316fe7e78a4fa7707c414",
        "Description: a test",
        " more of it",
        " .",
    ]
    assert text(image, "var/lib/dpkg/triggers/File") == "/usr/lib/plugins one/noawait\n"
    assert text(image, "var/lib/dpkg/triggers/refresh") == "one\n"


def test_packages_of_one_architecture_have_it_in_the_names_of_their_lists(tmp_path: Path) -> None:
    same = deb(tmp_path, "lib", {"etc/l": ""}, fields={"Multi-Arch": "same"})
    assert "var/lib/dpkg/info/lib:amd64.list" in members(assemble([same], tmp_path / "image"))


def test_apt_is_set_up_for_the_public_archive_whatever_this_machine_uses(tmp_path: Path) -> None:
    image = assemble(sample(tmp_path / "debs"), tmp_path / "image")
    sources = text(image, "etc/apt/sources.list.d/debian.sources")
    assert "URIs: http://deb.debian.org/debian\nSuites: trixie trixie-updates\n" in sources
    assert text(image, "etc/machine-id") == ""


def test_two_packages_may_have_the_same_file(tmp_path: Path) -> None:
    files = [deb(tmp_path, name, {"etc/x": "same"}) for name in ("one", "two")]
    assert text(assemble(files, tmp_path / "image"), "etc/x") == "same"


def test_two_packages_with_different_files_of_one_path_are_refused_by_name(tmp_path: Path) -> None:
    one = deb(tmp_path, "one", {"usr/bin/x": "1"})
    two = deb(tmp_path, "two", {"bin/x": "2"})
    with pytest.raises(InputError) as caught:
        assemble([one, two], tmp_path / "image")
    assert problems(caught) == ["/usr/bin/x is in one and, different, in two"]
    assert list(tmp_path.glob("image*")) == []


@pytest.mark.parametrize("first", ["one", "two"])
def test_a_package_that_replaces_another_wins(tmp_path: Path, first: str) -> None:
    fields = {"one": {}, "two": {}, first: {"Replaces": "zero (<< 2), one, two"}}
    files = [deb(tmp_path, name, {"etc/x": name}, fields=fields[name]) for name in ("one", "two")]
    assert text(assemble(files, tmp_path / "image"), "etc/x") == first


def test_a_replacement_of_older_versions_only_does_not_hide_a_conflict(tmp_path: Path) -> None:
    one = deb(tmp_path, "one", {"etc/x": "1"})
    two = deb(tmp_path, "two", {"etc/x": "2"}, fields={"Replaces": "one (<< 0.5)"})
    with pytest.raises(InputError, match="/etc/x is in one"):
        assemble([one, two], tmp_path / "image")


def test_a_script_that_nobody_reviewed_is_refused_with_its_text(tmp_path: Path) -> None:
    script = "#!/bin/sh\nuseradd daemon\n"
    one = deb(tmp_path, "one", control={"postinst": script, "postrm": "#!/bin/sh\nrm -r /x\n"})
    two = deb(tmp_path, "two", control={"preinst": script})
    with pytest.raises(InputError) as caught:
        assemble([one, two], tmp_path / "image")
    assert problems(caught) == [
        "the postinst script of one 1.0 was not reviewed, and scripts are not run",
        "the preinst script of two 1.0 was not reviewed, and scripts are not run",
    ]
    assert caught.value.problems[0].detail == script
    assert not (tmp_path / "image").exists()


def test_a_package_for_another_architecture_and_one_given_twice_are_refused(tmp_path: Path) -> None:
    files = [
        deb(tmp_path, "one", arch="arm64"),
        deb(tmp_path, "two"),
        deb(tmp_path, "two", version="2.0"),
    ]
    with pytest.raises(InputError) as caught:
        assemble(files, tmp_path / "image")
    assert problems(caught) == [
        "one is for arm64, not for amd64",
        "two is there twice: 1.0, 2.0",
    ]


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (lambda data: data[:-50], "it is cut off"),
        (lambda data: b"<html>" + data, "it is not an ar archive"),
        (lambda data: data.replace(b"data.tar.xz", b"dada.tar.xz"), "it has no data.tar"),
        (lambda data: data[:-100] + bytes(100), "Corrupt input data"),
    ],
)
def test_a_damaged_package_is_refused_by_its_path(tmp_path: Path, damage: Any, what: str) -> None:
    path = deb(tmp_path, "one", {"etc/x": "1" * 1000})
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError) as caught:
        assemble([path], tmp_path / "image")
    problem = caught.value.problems[0]
    assert (problem.code, problem.where) == ("deb-damaged", str(path))
    assert what in problem.what


def test_a_package_compressed_in_another_way_is_refused(tmp_path: Path) -> None:
    path = deb(tmp_path, "one", compression="bz2")
    with pytest.raises(InputError, match="is compressed with bz2; only xz, gzip and zstd"):
        assemble([path], tmp_path / "image")


def test_packages_of_ubuntu_are_read_which_are_compressed_with_zstd(tmp_path: Path) -> None:
    files = [
        deb(tmp_path / name, "one", {"etc/x": "1" * 1000}, compression=name)
        for name in ("xz", "zst")
    ]
    digests = [assemble([file], tmp_path / "image" / file.parent.name).digest for file in files]
    assert digests[0] == digests[1]


def test_an_image_replaces_the_one_before_only_when_it_is_complete(tmp_path: Path) -> None:
    image = assemble(sample(tmp_path / "debs"), tmp_path / "image")
    bad = deb(tmp_path, "bad", control={"postinst": "reboot\n"})
    with pytest.raises(InputError):
        assemble([bad], tmp_path / "image")
    assert blob(image, image.layer).exists()
    again = assemble([deb(tmp_path, "good", {"etc/x": ""})], tmp_path / "image")
    assert not blob(image, image.layer).exists()
    assert again.context == f"oci-layout://{again.folder}@{again.digest}"


def test_a_path_below_a_link_of_another_package_is_refused_by_name(tmp_path: Path) -> None:
    one = deb(tmp_path, "one", {"srv/data": symlink("/var/data")})
    two = deb(tmp_path, "two", {"srv/data/x": ""})
    with pytest.raises(InputError, match="/srv/data/x of two is below a symbolic link of one"):
        assemble([one, two], tmp_path / "image")
