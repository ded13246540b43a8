"""What the programs of a build share, and what ships with them."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import uv as uv_package
from support import index

from imagefactory.inbuild import install, layer
from imagefactory.planning import context

pytestmark = pytest.mark.programs


def test_wheels_are_unpacked_once_by_the_real_uv(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = index.wheel(tmp_path, "one", "1", files={"one/__init__.py": "ONE = 1\n"})
    sha256 = hashlib.sha256(made.read_bytes()).hexdigest()
    listing = tmp_path / "list.txt"
    listing.write_text(f"one==1 --hash=sha256:{sha256}\n")
    monkeypatch.setenv("PATH", str(Path(uv_package.find_uv_bin()).parent), prepend=os.pathsep)
    monkeypatch.setattr(install, "PYTHON", sys.executable)
    install.install(listing, "--target", str(tmp_path / "out"), "--quiet", mounted=tmp_path)
    unpacked = tmp_path / "out/one/__init__.py"
    assert unpacked.read_text() == "ONE = 1\n"
    assert unpacked.stat().st_nlink == 1
    assert not unpacked.is_symlink()


def test_every_file_folder_and_link_gets_the_one_date(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/file").write_text("")
    (tmp_path / "link").symlink_to("nowhere")
    layer.set_dates(tmp_path)
    everything = [tmp_path, *tmp_path.rglob("*")]
    assert {path.lstat().st_mtime for path in everything} == {layer.EPOCH}


def test_a_file_that_is_written_later_has_another_date(tmp_path: Path) -> None:
    layer.set_dates(tmp_path)
    (tmp_path / "late").write_text("")
    assert (tmp_path / "late").stat().st_mtime != layer.EPOCH


@pytest.mark.parametrize("kind", context.PROGRAMS)
def test_a_program_imports_nothing_that_is_not_shipped_beside_it(kind: str, tmp_path: Path) -> None:
    for name, data in context.program_files(kind).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    names = [Path(name).with_suffix("") for name in context.program_files(kind)]
    modules = [".".join(p.parts) for p in names]
    assert imported(tmp_path, modules) == ""


def imported(folder: Path, modules: list[str]) -> str:
    """What a bare interpreter complains of when it imports ``modules`` from ``folder``."""
    program = f"import sys; sys.path.insert(0, {str(folder)!r})\n" + "".join(
        f"import {module}\n" for module in modules
    )
    argv = [sys.executable, "-I", "-S", "-B", "-c", program]
    return subprocess.run(argv, capture_output=True, text=True, check=False).stderr
