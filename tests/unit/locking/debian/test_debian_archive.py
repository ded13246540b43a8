"""Package indexes are read only if they are signed, current, and of the requested suite."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pysequoia import Cert, Tsk
from support.debian import BASIC, key, package, serve, write, write_ubuntu

from imagefactory.errors import FactoryError
from imagefactory.locking.debian import archive, packages
from imagefactory.settings import Debian, from_environment


@pytest.fixture(scope="module")
def owner() -> Tsk:
    return key()


@pytest.fixture
def www(tmp_path: Path) -> Path:
    return tmp_path / "www"


@pytest.fixture
def debian(www: Path, owner: Tsk) -> Iterator[Debian]:
    write(www, owner, *BASIC, security=(package("apt", "1+deb13u1"),))
    with serve(www, owner) as found:
        yield found


def code(debian: Debian, suite: str = "trixie", arch: str = "arm64") -> str:
    with pytest.raises(FactoryError) as caught:
        archive.indexes(suite, [arch], debian)
    return caught.value.problems[0].code


@pytest.mark.programs
def test_a_suite_is_read_with_its_updates_and_its_security_updates(debian: Debian) -> None:
    found = archive.indexes("trixie", ["amd64", "arm64"], debian)
    assert [index.archive for index in found["arm64"]] == ["debian", "debian", "debian-security"]
    assert b"Package: base-files\n" in found["amd64"][0].text
    assert b"Version: 1+deb13u1\n" in found["amd64"][2].text


def test_an_archive_that_is_signed_with_another_key_is_rejected(
    debian: Debian, www: Path, owner: Tsk
) -> None:
    write(www, key(), *BASIC)
    assert code(debian) == "debian-untrusted"


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("Codename: trixie\n", "Codename: trixie\nMore: 1\n"),
        lambda text: text.partition("-----BEGIN PGP SIGNATURE")[0],
        lambda text: text.partition("\n\n")[2],
    ],
)
def test_an_archive_whose_release_was_changed_is_rejected(
    debian: Debian, www: Path, change: Callable[[str], str]
) -> None:
    path = www / "debian" / "dists" / "trixie" / "InRelease"
    path.write_text(change(path.read_text()))
    assert code(debian) == "debian-untrusted"


def test_what_precedes_the_signed_text_is_not_read(debian: Debian, www: Path) -> None:
    path = www / "debian" / "dists" / "trixie" / "InRelease"
    path.write_text(
        f"Codename: trixie\nSHA256:\n 0 1 main/binary-s390x/Packages.xz\n{path.read_text()}"
    )
    assert code(debian, arch="s390x") == "debian-no-architecture"


def test_an_index_that_is_not_the_signed_one_is_rejected(debian: Debian, www: Path) -> None:
    for path in www.glob("debian/dists/trixie/main/binary-arm64/by-hash/SHA256/*"):
        path.write_bytes(b"another")
    assert code(debian) == "debian-index-changed"


def test_the_signed_release_of_another_suite_is_rejected(debian: Debian, www: Path) -> None:
    (www / "debian" / "dists" / "trixie").rename(www / "debian" / "dists" / "forky")
    assert code(debian, "forky") == "debian-other-suite"


def test_a_mirror_that_is_no_longer_updated_is_rejected(
    debian: Debian, www: Path, owner: Tsk
) -> None:
    write(www, owner, *BASIC, fields="Valid-Until: Sat, 01 Feb 2020 00:00:00 UTC\n")
    assert code(debian) == "debian-expired"


def test_an_archive_that_is_down_and_unreadable_keys_are_clear_errors(
    debian: Debian, tmp_path: Path
) -> None:
    assert code(replace(debian, keys=tmp_path / "none")) == "debian-keys"
    assert code(debian, "bookworm") == "debian-unreachable"


def test_the_keys_that_are_trusted_by_default_are_those_of_debian_12_and_13() -> None:
    keys = Cert.split_file(str(archive.DISTRIBUTIONS["debian"].keys))
    assert sorted(str(key.user_ids[0]).partition(" <")[0] for key in keys) == [
        "Debian Archive Automatic Signing Key (12/bookworm)",
        "Debian Archive Automatic Signing Key (13/trixie)",
        "Debian Security Archive Automatic Signing Key (12/bookworm)",
        "Debian Security Archive Automatic Signing Key (13/trixie)",
        "Debian Stable Release Key (12/bookworm)",
        "Debian Stable Release Key (13/trixie)",
    ]


def test_the_mirror_is_that_of_the_settings_else_of_apt_else_debians(tmp_path: Path) -> None:
    lists = tmp_path / "sources.list.d"
    lists.mkdir()
    assert archive.mirror("debian", Debian(), tmp_path) == "http://deb.debian.org/debian"
    (tmp_path / "sources.list").write_text(
        "# deb http://old.example/debian trixie main\n"
        "deb [arch=amd64] https://one.example/debian/ trixie main\n"
    )
    (lists / "security.sources").write_text("URIs: http://two.example/debian-security\n")
    assert archive.mirror("debian", Debian(), tmp_path) == "https://one.example/debian"
    assert archive.mirror("debian-security", Debian(), tmp_path).startswith("http://two.example")
    environ = {"IMAGEFACTORY_DEBIAN_MIRROR": "http://own.example/debian/"}
    debian = from_environment(environ).debian
    assert archive.mirror("debian", debian, tmp_path) == "http://own.example/debian"
    assert archive.mirror("debian-security", debian, tmp_path).startswith("http://two.example")


def test_ubuntus_archives_have_components_and_arm64_one_of_its_own(
    debian: Debian, www: Path, owner: Tsk
) -> None:
    write_ubuntu(www, owner, package("python3-venv"))
    found = archive.indexes("noble", ["amd64", "arm64"], debian, distribution="ubuntu")
    for arch, name in (("amd64", "ubuntu"), ("arm64", "ubuntu-ports")):
        assert [index.archive for index in found[arch]] == [name] * 6
        assert any(b"Package: python3-venv\n" in index.text for index in found[arch])


def test_ubuntus_key_is_the_one_of_2018() -> None:
    (key,) = Cert.split_file(str(archive.DISTRIBUTIONS["ubuntu"].keys))
    assert key.fingerprint == "f6ecb3762474eda9d21b7022871920d1991bc93c"


def test_the_versions_of_all_packages_are_kept_by_the_hash_of_the_index(
    debian: Debian, www: Path, tmp_path: Path
) -> None:
    found = archive.versions("trixie", "arm64", debian, tmp_path / "kept")
    assert packages.newest(found["apt"]) == "1+deb13u1"
    assert len(found["apt"]) == 2
    for path in www.rglob("by-hash"):
        shutil.rmtree(path)  # only the signed files are read again
    assert archive.versions("trixie", "arm64", debian, tmp_path / "kept") == found
    for path in (tmp_path / "kept").iterdir():
        path.write_text("[]")
    with pytest.raises(FactoryError):
        archive.versions("trixie", "arm64", debian, tmp_path / "kept")


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("debian", "http://deb.debian.org/debian"),
        ("debian-security", "http://deb.debian.org/debian-security"),
        ("ubuntu", "http://archive.ubuntu.com/ubuntu"),
        ("ubuntu-ports", "http://ports.ubuntu.com/ubuntu-ports"),
    ],
)
def test_without_a_mirror_an_archive_is_at_its_own_address(
    tmp_path: Path, name: str, url: str
) -> None:
    assert archive.mirror(name, Debian(), tmp_path) == url
