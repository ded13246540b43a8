"""What the resolver may choose from: wheels only, of every index, with the hashes of the index."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.index import serve, wheel, write_pages
from support.machine import settings
from support.plans import planned

from imagefactory.errors import CheckFailedError
from imagefactory.locking import resolve
from imagefactory.locking.lock import Wheel
from imagefactory.matrix.cell import Override, Request
from imagefactory.settings import Settings
from imagefactory.system.platforms import Platform
from imagefactory.system.yamlfile import Location

pytestmark = pytest.mark.programs

HERE = Location(file="matrix.yaml", line=1)


def request(*requirements: str, **more: object) -> Request:
    given = {"overrides": (), "indexes": (), **more}
    return Request(
        platform=Platform.ARM64,
        python="3.13",
        glibc="2.41",
        channel="cpu",
        requirements=requirements,
        **given,  # type: ignore[arg-type]
    )


@pytest.fixture
def using(tmp_path: Path) -> Iterator[Settings]:
    """Two indexes: the first has ``one``, the second ``two``; ``one`` requires ``two``."""
    wheel(tmp_path / "first", "one", "1.0", requires=("two",))
    wheel(tmp_path / "second", "two", "1.0")
    with (
        serve(tmp_path / "first", tmp_path / "www1") as first,
        serve(tmp_path / "second", tmp_path / "www2") as second,
    ):
        yield settings(tmp_path, first, second)


def versions(found: dict[Wheel, str]) -> dict[str, str]:
    return {one.name: one.version for one in found}


def test_every_index_is_searched_and_each_wheel_has_the_hash_of_its_file(
    tmp_path: Path, using: Settings
) -> None:
    found = resolve.resolve(request("one"), using)
    assert versions(found) == {"one": "1.0", "two": "1.0"}
    for folder, one in (("first", "one"), ("second", "two")):
        (file,) = (tmp_path / folder).iterdir()
        (locked,) = [row for row in found if row.name == one]
        data = file.read_bytes()
        sha, size = hashlib.sha256(data).hexdigest(), len(data)
        assert (locked.sha256, locked.size, locked.filename) == (sha, size, file.name)
    with pytest.raises(CheckFailedError):
        resolve.resolve(request("one"), replace(using, indexes=using.indexes[:1]), refresh=True)


def test_a_release_with_sources_only_is_no_candidate(tmp_path: Path, using: Settings) -> None:
    page = tmp_path / "www2/simple/two/index.html"
    link = '<a href="/files/two-2.0.tar.gz#sha256=' + "0" * 64 + '">two-2.0.tar.gz</a>'
    page.write_text(page.read_text().replace("<body>", f"<body>{link}"))
    assert versions(resolve.resolve(request("two"), using))["two"] == "1.0"
    with pytest.raises(CheckFailedError) as caught:
        resolve.resolve(request("two==2.0"), using)
    assert caught.value.problems[0].code == "lock-unsatisfiable"


def test_a_wheel_for_another_platform_python_or_glibc_is_no_candidate(
    tmp_path: Path, using: Settings
) -> None:
    files = tmp_path / "second"
    others = ("cp313-manylinux_2_28_x86_64", "cp312-manylinux_2_28_aarch64")
    for number, tag in enumerate((*others, "cp313-manylinux_2_42_aarch64")):
        made = wheel(files, "two", f"9.{number}")
        made.rename(files / made.name.replace("py3-none-any", f"{tag[:5]}-{tag}"))
    made = wheel(files, "two", "2.0")
    made.rename(files / made.name.replace("py3-none-any", "cp313-cp313-manylinux_2_28_aarch64"))
    write_pages(files, tmp_path / "www2")
    assert versions(resolve.resolve(request("two"), using)) == {"two": "2.0"}


def test_a_dropped_requirement_is_left_out_and_a_replaced_one_is_replaced(
    tmp_path: Path, using: Settings
) -> None:
    dropped = Override(requirement="two", drop=True, reason="r", location=HERE)
    assert versions(resolve.resolve(request("one", overrides=(dropped,)), using)) == {"one": "1.0"}
    wheel(tmp_path / "second", "two", "2.0")
    write_pages(tmp_path / "second", tmp_path / "www2")
    older = Override(requirement="two==1.0", drop=False, reason="r", location=HERE)
    found = resolve.resolve(request("one", overrides=(older,)), using, refresh=True)
    assert versions(found) == {"one": "1.0", "two": "1.0"}


def test_locked_versions_are_kept_except_those_to_upgrade(tmp_path: Path, using: Settings) -> None:
    before = tuple(resolve.resolve(request("one"), using))
    previous = replace(planned().resolution, wheels=before)
    for folder, name in (("first", "one"), ("second", "two")):
        wheel(tmp_path / folder, name, "2.0", requires=("two",) if name == "one" else ())
    write_pages(tmp_path / "first", tmp_path / "www1")
    write_pages(tmp_path / "second", tmp_path / "www2")
    kept = resolve.resolve(request("one"), using, previous=previous, refresh=True)
    assert versions(kept) == {"one": "1.0", "two": "1.0"}
    some = resolve.resolve(request("one"), using, previous=previous, upgrade_packages=("two",))
    assert versions(some) == {"one": "1.0", "two": "2.0"}
