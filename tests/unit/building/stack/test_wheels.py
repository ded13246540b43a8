"""What a wheel installs: the same files that uv installs, without unpacking them."""

from __future__ import annotations

import csv
import io
import posixpath
import subprocess
import sys
import zipfile
from contextlib import ExitStack
from pathlib import Path

import pytest
import uv
from support import index

from imagefactory.building.stack import wheels
from imagefactory.building.tree import Kind, Tree
from imagefactory.errors import SetupError

SITE = f"opt/venv/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
#: Every kind of file that a wheel can have.
FILES = {
    "one/__init__.py": "ONE = 1\n",
    "one/data, with a comma.txt": "x",
    "one-1.data/scripts/tool": "#!python\nprint(1)\n",
    "one-1.data/scripts/shell": "#!/bin/sh\n",
    "one-1.data/data/share/one.txt": "shared",
    "one-1.data/headers/one.h": "int one;",
    "one-1.data/purelib/pure.py": "PURE = 1\n",
    "one-1.dist-info/entry_points.txt": "[console_scripts]\nrun = one.cli:app.main\n",
}


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    return index.wheel(tmp_path, "one", "1", files=FILES)


def installed(*paths: Path) -> dict[str, tuple[int, bytes]]:
    """Mode and content of each file."""
    with ExitStack() as opened:
        tree = wheels.install_all(paths, PYTHON, opened)
        return {p: (one.mode, one.read()) for p, one in tree if one.kind is Kind.FILE}


@pytest.mark.programs
def test_a_wheel_installs_the_files_that_uv_installs(wheel: Path, tmp_path: Path) -> None:
    prefix = tmp_path / "root/opt/venv"
    argv = [uv.find_uv_bin(), "pip", "install", "--quiet", "--no-index", "--no-deps"]
    argv += ["--no-cache", "--python", sys.executable, "--prefix", str(prefix), str(wheel)]
    subprocess.run(argv, check=True)
    root = tmp_path / "root"
    own = {".lock", "direct_url.json", "uv_cache.json"}  # uv's notes
    theirs = {
        str(path.relative_to(root)): path.stat().st_mode & 0o777
        for path in root.rglob("*")
        if path.is_file() and path.name not in own
    }
    ours = installed(wheel)
    assert {path: mode for path, (mode, _) in ours.items()} == theirs
    same = [path for path in ours if not path.endswith(("INSTALLER", "RECORD", "bin/run"))]
    assert all(
        ours[path][1].splitlines()[1:] == (root / path).read_bytes().splitlines()[1:]
        for path in same
    )


def test_scripts_run_with_the_interpreter_of_the_image(wheel: Path) -> None:
    found = installed(wheel)
    assert found["opt/venv/bin/tool"] == (0o755, b"#!/opt/venv/bin/python\nprint(1)\n")
    assert found["opt/venv/bin/shell"] == (0o755, b"#!/bin/sh\n")
    mode, text = found["opt/venv/bin/run"]
    assert mode == 0o755
    assert text.startswith(b"#!/opt/venv/bin/python\n")
    assert b"from one.cli import app\n" in text
    assert b"app.main()" in text


def test_record_lists_every_file_by_its_path_from_site_packages(wheel: Path) -> None:
    found = installed(wheel)
    text = found[f"{SITE}/one-1.dist-info/RECORD"][1].decode()
    listed = [row[0] for row in csv.reader(io.StringIO(text, newline=""))]
    assert sorted(posixpath.normpath(f"{SITE}/{name}") for name in listed) == sorted(found)
    assert "../../../bin/run" in listed


def test_where_two_wheels_have_a_file_the_last_one_counts(tmp_path: Path) -> None:
    one = index.wheel(tmp_path, "one", "1", files={"shared/__init__.py": "1"})
    two = index.wheel(tmp_path, "two", "1", files={"shared/__init__.py": "2"})
    assert installed(one, two)[f"{SITE}/shared/__init__.py"][1] == b"2"
    assert installed(two, one)[f"{SITE}/shared/__init__.py"][1] == b"1"


def test_compiled_python_is_there_to_be_left_out_by_the_rule_for_it(tmp_path: Path) -> None:
    made = index.wheel(tmp_path, "one", "1", files={"one/__pycache__/a.cpython-313.pyc": "x"})
    assert f"{SITE}/one/__pycache__/a.cpython-313.pyc" in installed(made)


@pytest.mark.parametrize("name", ["../../evil.py", "/etc/evil", "one/../../../evil"])
def test_a_wheel_whose_files_leave_their_folder_is_refused(name: str, wheel: Path) -> None:
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr(name, "x")
    with pytest.raises(SetupError, match=r"one-1-py3-none-any\.whl cannot be installed"):
        installed(wheel)


def test_a_file_that_is_no_wheel_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "one-1-py3-none-any.whl"
    path.write_text("no archive")
    with pytest.raises(SetupError, match="cannot be installed"):
        installed(path)


def test_a_damaged_file_in_a_wheel_is_noticed_when_it_is_read(wheel: Path) -> None:
    data = wheel.read_bytes()
    wheel.write_bytes(data.replace(b"ONE = 1\n", b"ONE = 2\n"))
    with pytest.raises(zipfile.BadZipFile):
        installed(wheel)


def test_an_empty_list_installs_nothing() -> None:
    with ExitStack() as opened:
        assert wheels.install_all([], PYTHON, opened).entries == Tree().entries
