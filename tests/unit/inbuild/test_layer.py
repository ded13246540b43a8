"""The programs that install wheels: what uv is asked for, and what an install layer is."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import uv as uv_package
from support import index

from imagefactory.inbuild import archives, install, layer
from imagefactory.inbuild.layer import Target
from imagefactory.planning import context

TARGET = Target("3.13", "aarch64-manylinux_2_40", None)
SITE = "opt/venv/lib/python3.13/site-packages"
WHEEL = "pkg-1-py3-none-any.whl"
#: A stand-in for uv that installs one package, and records how it was called.
UV = f"""\
#!{sys.executable}
import json, os, pathlib, sys
found = sorted(os.listdir(sys.argv[sys.argv.index("--find-links") + 1]))
pathlib.Path(os.environ["CALLED"]).write_text(json.dumps([sys.argv[1:], found]))
if "fail" in os.environ:
    sys.exit(7)
site = pathlib.Path(sys.argv[sys.argv.index("--prefix") + 1], "lib/python3.13/site-packages")
info = site / "pkg-1.dist-info"
info.mkdir(parents=True)
(site / "pkg/tests").mkdir(parents=True)
for name in ("pkg/__init__.py", "pkg/tests/test_a.py"):
    (site / name).write_text("")
(site / "pkg/link").symlink_to("nowhere")
(info / "uv_cache.json").write_text("{{}}")
rows = ["pkg/__init__.py,,", "pkg/tests/test_a.py,,"]
rows += ["pkg-1.dist-info/uv_cache.json,sha256=x,2", "last,,"]
(info / "RECORD").write_text("".join(row + "\\n" for row in rows))
"""


@pytest.fixture
def uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which uv's call is recorded."""
    program = tmp_path / "bin" / "uv"
    program.parent.mkdir()
    program.write_text(UV)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    monkeypatch.setenv("CALLED", str(tmp_path / "called.json"))
    monkeypatch.setattr(layer, "LIST", tmp_path / "list.txt")
    monkeypatch.setattr(layer, "WHEELS", tmp_path / "wheels")
    monkeypatch.setattr(archives, "ARCHIVES", tmp_path / "archives")
    data = b"the archive of a wheel"
    sha256 = hashlib.sha256(data).hexdigest()
    (tmp_path / "list.txt").write_text(f"pkg==1 --hash=sha256:{sha256}\n")
    kept = tmp_path / "archives" / sha256 / WHEEL
    kept.parent.mkdir(parents=True)
    kept.write_bytes(data)
    return tmp_path / "called.json"


def called(file: Path) -> tuple[list[str], list[str]]:
    """uv's arguments, and the archives that it was given."""
    argv, found = json.loads(file.read_text())
    return argv, found


def made(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    layer.main("small", TARGET, out=tmp_path / "out")
    return tmp_path / "out" / "root", json.loads((tmp_path / "out/report.json").read_text())


def test_uv_is_asked_for_exactly_the_listed_wheels_of_the_images_platform(
    uv: Path, tmp_path: Path
) -> None:
    made(tmp_path)
    argv, found = called(uv)
    links, cache = argv[argv.index("--find-links") + 1], argv[argv.index("--cache-dir") + 1]
    assert argv == [
        *("pip", "install", "--python", "/opt/venv/bin/python"),
        *("--only-binary", ":all:", "--no-deps", "--require-hashes"),
        *("--no-index", "--link-mode", "hardlink"),
        *("--prefix", f"{tmp_path}/out/root/opt/venv"),
        *("--python-version", "3.13", "--python-platform", "aarch64-manylinux_2_40"),
        *("--find-links", links, "--cache-dir", cache, "-r", f"{tmp_path}/list.txt"),
    ]
    assert found == [WHEEL]
    assert not Path(links).exists()
    assert not Path(cache).exists()


def test_wheels_that_are_at_no_index_are_found_where_they_are_mounted(
    uv: Path, tmp_path: Path
) -> None:
    (kept,) = (tmp_path / "archives").glob("*/*.whl")
    (tmp_path / "wheels").mkdir()
    kept.rename(tmp_path / "wheels" / WHEEL)
    made(tmp_path)
    assert called(uv)[1] == [WHEEL]


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


def test_where_uv_fails_no_layer_is_made(
    uv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("fail", "yes")
    with pytest.raises(SystemExit) as caught:
        made(tmp_path)
    assert caught.value.code == 7
    assert not (tmp_path / "out/report.json").exists()


def test_a_layer_is_trimmed_and_its_report_says_what_is_missing(uv: Path, tmp_path: Path) -> None:
    root, report = made(tmp_path)
    assert not (root / SITE / "pkg/tests").exists()
    assert report["layer"] == "small"
    (row,) = report["dropped"]
    assert (row["rule"], row["files"]) == ("tests", [["pkg/tests/test_a.py", 0]])
    assert "\n" not in row["why"]


def test_what_differs_from_build_to_build_is_gone_from_the_folder_and_from_the_record(
    uv: Path, tmp_path: Path
) -> None:
    root, _ = made(tmp_path)
    assert list(root.rglob("uv_cache.json")) == []
    assert (root / SITE / "pkg-1.dist-info/RECORD").read_text() == "pkg/__init__.py,,\nlast,,\n"


def test_every_file_folder_and_link_of_a_layer_has_the_one_date(uv: Path, tmp_path: Path) -> None:
    root, _ = made(tmp_path)
    everything = [root, *root.rglob("*")]
    assert any(path.is_symlink() for path in everything)
    assert {path.lstat().st_mtime for path in everything} == {315532800}
    assert {path.lstat().st_atime for path in everything if path.is_symlink()} == {315532800}


def test_a_file_that_is_written_later_has_another_date(tmp_path: Path) -> None:
    layer.set_dates(tmp_path)
    (tmp_path / "late").write_text("")
    assert (tmp_path / "late").stat().st_mtime != layer.EPOCH


@pytest.mark.parametrize("kind", context.PROGRAMS)
def test_a_program_imports_nothing_that_is_not_shipped_beside_it(kind: str, tmp_path: Path) -> None:
    for name, data in context.program_files(kind).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    modules = [f"factory.{Path(name).stem}" for name in context.program_files(kind)]
    assert imported(tmp_path, modules) == ""


def test_an_install_layer_runs_without_the_other_programs(tmp_path: Path) -> None:
    files = context.program_files("image")
    (tmp_path / "factory").mkdir()
    for name in (*context.LAYER_PROGRAMS, "belt.py"):
        (tmp_path / "factory" / name).write_bytes(files[f"factory/{name}"])
    assert imported(tmp_path, ["factory.layer"]) == ""
    assert "cannot import name 'identity'" in imported(tmp_path, ["factory.belt"])


def imported(folder: Path, modules: list[str]) -> str:
    """What a bare interpreter complains of when it imports ``modules`` from ``folder``."""
    program = f"import sys; sys.path.insert(0, {str(folder)!r})\n" + "".join(
        f"import {module}\n" for module in modules
    )
    argv = [sys.executable, "-I", "-S", "-B", "-c", program]
    return subprocess.run(argv, capture_output=True, text=True, check=False).stderr
