"""Unpacking archives, without writing outside of the target folder."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from imagefactory.system import archive


def tar(*names: str, link: str = "") -> tarfile.TarFile:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as made:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = 1
            made.addfile(info, io.BytesIO(b"x"))
        if link:
            info = tarfile.TarInfo("link")
            info.type, info.linkname = tarfile.SYMTYPE, link
            made.addfile(info)
    out.seek(0)
    return tarfile.open(fileobj=out, mode="r|")


def test_files_are_unpacked_into_their_folders_and_links_are_skipped(tmp_path: Path) -> None:
    with tar("a", "./b/c", link="/etc/passwd") as opened:
        archive.unpack(opened, tmp_path / "new")
    found = {
        path.relative_to(tmp_path / "new").as_posix()
        for path in tmp_path.rglob("*")
        if not path.is_dir()
    }
    assert found == {"a", "b/c"}


@pytest.mark.parametrize("name", ["../out", "/out", "a/../../out"])
def test_a_name_that_leads_out_of_the_folder_is_rejected(tmp_path: Path, name: str) -> None:
    with tar(name) as opened, pytest.raises(ValueError, match="outside"):
        archive.unpack(opened, tmp_path / "new")
    assert not (tmp_path / "out").exists()
