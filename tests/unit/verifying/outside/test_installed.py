"""What a wheel becomes in an image: its paths, what the build leaves out, links to compilers."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.machine import settings
from support.whole_images import SITE, sha256

from imagefactory.locking.lock import Wheel
from imagefactory.verifying.outside import installed, inventory, outside, patched
from imagefactory.verifying.outside.installed import Python
from imagefactory.verifying.outside.inventory import Inventory, Member, Wheels
from imagefactory.verifying.outside.tree import Entry
from imagefactory.verifying.outside.want import Want, Wants

PYTHON = Python(version="3.13", cuda_home="/opt/cuda")
PLAIN = Python(version="3.13", cuda_home=None)
WHEEL = Wheel(
    name="nvcc",
    version="1",
    filename="nvcc-1-py3-none-any.whl",
    sha256="ff" * 32,
    size=1,
    index="find-links",
)


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("a/b.so", f"{SITE}/a/b.so"),
        ("a.py", f"{SITE}/a.py"),
        ("a-1.data/purelib/a/b.py", f"{SITE}/a/b.py"),
        ("a-1.data/platlib/a/b.so", f"{SITE}/a/b.so"),
        ("a-1.data/scripts/run", "opt/venv/bin/run"),
        ("a-1.data/data/share/x", "opt/venv/share/x"),
        ("a-1.data/headers/a.h", "opt/venv/include/site/python3.13/proj/a.h"),
        ("a-1.data/other/x/y", f"{SITE}/a-1.data/other/x/y"),
        ("a-1.data/scripts", "opt/venv/bin"),
        ("a-1.data", f"{SITE}/a-1.data"),
    ],
)
def test_a_member_is_installed_where_its_scheme_says(name: str, path: str) -> None:
    assert installed._target(name, "proj", PYTHON) == path


def test_a_script_may_have_the_image_s_python_in_its_first_line() -> None:
    text = b"#!/opt/venv/bin/python\nrun()\n"
    for source in (text, b"#!python\nrun()\n", b"#!pythonw\nrun()\n"):
        assert installed._script_fault(text, sha256(source)) == ""
    assert installed._script_fault(text, sha256(b"#!perl\nrun()\n")) == "has other content"


def inventory_of(*names: str, folders: tuple[str, ...] = ()) -> Inventory:
    files = {
        name: Member(sha256(name.encode()), len(name), name.endswith(("nvcc", "ptxas")))
        for name in names
    }
    return Inventory(name="nvcc", files=files, folders=folders, scripts={})


def wants_of(paths: Mapping[str, Member]) -> Wants:
    wants = Wants()
    for path in paths:
        wants.add(path, Want(origin="wheel a"))
    return wants


HOME, CUDA = "opt/cuda", f"{SITE}/nvidia/cu13"


def test_the_toolchain_is_in_its_home_and_linked_to_the_headers_and_libraries_it_lacks() -> None:
    tool = inventory_of(
        *("nvidia/cu13/bin/nvcc", "nvidia/cu13/include/cuda.h", "nvidia/cu13/lib/libown.so.1"),
        *("nvcc-1.dist-info/RECORD", "nvidia/other/x"),
        folders=("nvidia/cu13/nvvm", "nvidia/other"),
    )
    there = (
        *("include/cuda.h", "include/cublas.h", "include/sub/x.h", "lib/libcublas.so.13"),
        *("lib/libcublas.so", "lib/libown.so.1", "lib/libown.so.2", "lib/readme", "lib/libx.a"),
        *("lib/own.so", "bin/tool"),
    )
    wants = wants_of({f"{CUDA}/{name}": Member("", 0, False) for name in there})
    toolchain: Any = SimpleNamespace(name="cuda13", wheels=[WHEEL])
    installed.compilers(wants, toolchain, {WHEEL.sha256: tool}, PYTHON)
    own = {
        path.removeprefix(f"{HOME}/"): one
        for path, (one,) in wants.paths.items()
        if path.startswith(f"{HOME}/")
    }
    links = {name: [t.rpartition(f"/{CUDA}")[2] for t in one.links] for name, one in own.items()}
    assert links == {
        "bin/nvcc": [],
        "include/cuda.h": [],
        "lib/libown.so.1": [],
        "lib64": ["lib"],
        "include/cublas.h": ["/include/cublas.h"],
        "include/sub": ["/include/sub"],
        "lib/libcublas.so": ["/lib/libcublas.so", "/lib/libcublas.so.13"],
        "lib/libcublas.so.13": ["/lib/libcublas.so.13"],
        "lib/libown.so": ["/lib/libown.so.1", "/lib/libown.so.2"],
        "lib/libown.so.2": ["/lib/libown.so.2"],
    }
    assert {name for name, one in own.items() if one.kind == "link"} == {
        name for name in links if links[name]
    }
    assert all(t.startswith(f"/{CUDA}/") for n, o in own.items() if n != "lib64" for t in o.links)
    nvcc = own["bin/nvcc"]
    assert (nvcc.modes, nvcc.member, nvcc.wheel) == (
        (0o755,),
        "nvidia/cu13/bin/nvcc",
        WHEEL.sha256,
    )
    assert nvcc.hashes == {sha256(b"nvidia/cu13/bin/nvcc")}
    assert nvcc.size == 20
    assert own["include/cuda.h"].modes == (0o644,)
    assert {nvcc.origin, own["lib64"].origin} == {"wheel nvcc", "toolchain cuda13"}
    assert {f"{HOME}/nvvm", f"{HOME}/bin"} <= wants.folders
    assert f"{HOME}/nvidia" not in wants.folders


@pytest.mark.parametrize(
    ("names", "folder"),
    [
        (("nvidia/cu13/bin/nvcc",), "nvidia/cu13"),
        (("nvidia/cu13/bin/nvcc", "nvidia/cu12/bin/nvcc"), "nvidia/cu12"),
        (("nvidia/cu13/nvvm/bin/nvcc", "other/cu13/bin/nvcc", "nvidia/cu13/bin/x"), "nvidia/cu"),
    ],
)
def test_the_folder_of_cuda_is_the_one_with_a_compiler(names: tuple[str, ...], folder: str) -> None:
    toolchain: Any = SimpleNamespace(wheels=[WHEEL])
    assert installed._cuda_folder(toolchain, {WHEEL.sha256: inventory_of(*names)}) == folder


#: Files of wheels by content, and what trim.py makes of them: a link, or nothing.
LAYER = {
    "nvidia/cu13/bin/ptxas": "p",
    "nvidia/cu13/nvvm/bin/cicc": "c",
    "triton/backends/nvidia/bin/ptxas-blackwell": "b",
    "a/libx.a": "a",
    "a/libcudadevrt.a": "a",
    "a/x.pyc": "a",
    "a/x.pyo": "a",
    "a/x.whl": "a",
    "a/x.py": "a",
    "a/lib.so": "same",
    "a/lib.so.1": "same",
    "a/lib.so.1.2": "same",
    "a/other.so": "five!",
    "a/other.so.1": "!five",
    "b/lib.so.9": "same",
    "a/tests/test_x.py": "t",
    "a/tests/data.txt": "t",
    "b/test/helper.py": "t",
}


@pytest.mark.parametrize("python", [PYTHON, PLAIN])
def test_the_build_leaves_out_and_links_what_trim_py_says(python: Python) -> None:
    files = [
        installed._File(f"{SITE}/{name}", name, Member(sha256(text.encode()), len(text), False))
        for name, text in LAYER.items()
    ]
    files.append(installed._File("opt/venv/bin/x.pyc", "x", Member("", 0, False)))
    wants = wants_of({file.path: file.member for file in files})
    gone = {path.removeprefix(f"{SITE}/") for path in installed._trim(wants, files, python)}
    assert gone == {"a/libx.a", "a/x.pyc", "a/x.pyo", "a/x.whl"}
    reason = "is never used, and is left out by the build"
    assert wants.absent == {f"{SITE}/{name}": reason for name in gone}
    left = {path.removeprefix(f"{SITE}/"): one for path, (one,) in wants.paths.items()}
    assert set(left) == set(LAYER) - gone | {"opt/venv/bin/x.pyc"}
    links = {
        "nvidia/cu13/bin/ptxas": ("/opt/cuda/bin/ptxas",),
        "nvidia/cu13/nvvm/bin/cicc": ("/opt/cuda/nvvm/bin/cicc",),
        "triton/backends/nvidia/bin/ptxas-blackwell": ("/opt/cuda/bin/ptxas",),
    }
    same = {"a/lib.so": ("lib.so.1.2",), "a/lib.so.1": ("lib.so.1.2",)}
    wanted = same | (links if python.cuda_home else {})
    assert {name: one.links for name, one in left.items() if one.kind == "link"} == wanted
    assert {one.origin for one in left.values()} == {"wheel a"}
    tests = [f"{SITE}/a/tests/test_x.py", f"{SITE}/a/tests/data.txt"]
    assert wants.together == {f"{SITE}/a/tests": tests}


POINTS = """\
[console_scripts]
run = a.b : main [extra]
Other=a:o
[gui_scripts]
gui = a:gui
[other]
no = a:no
"""


def archive(files: Mapping[str, bytes]) -> zipfile.ZipFile:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as written:
        for name, data in files.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = (0o755 if name == "a/run" else 0o644) << 16
            written.writestr(info, data)
    return zipfile.ZipFile(out)


def test_an_inventory_has_all_that_a_wheel_says_of_itself() -> None:
    record = (
        f"a/run,sha256={'A' * 43},5\na/md5,md5=x,1\na/bare,,\na/ghost,sha256={'B' * 43},9\n\n"
        "a-1.dist-info/RECORD,,\n"
    )
    files = {
        "a/": b"",
        "a/run": b"run",
        "a/md5": b"m",
        "a/bare": b"bare",
        "a/new": b"n",
        "a-1.dist-info/RECORD": record.encode(),
        "a-1.dist-info/entry_points.txt": POINTS.encode(),
        "a/vendored/b-1.dist-info/RECORD": b"x,sha256=,\n",
    }
    found = inventory.read("a", archive(files))
    assert found.name == "a"
    assert found.folders == ("a",)
    assert found.scripts == {"run": "a.b : main", "Other": "a:o", "gui": "a:gui"}
    assert found.ghosts == ("a/ghost",)
    assert found.sizes == {"a/run": "5"}
    assert set(found.files) == set(files) - {"a/"}
    assert found.files["a/run"] == Member("00" * 32, 3, True)
    assert found.files["a/bare"] == Member("", 4, False)
    assert {found.files[name].sha256 for name in ("a/md5", "a/new")} == {""}


def test_an_inventory_is_kept_as_it_was_and_a_damaged_note_is_none(tmp_path: Path) -> None:
    wheels = Wheels(settings(tmp_path))
    made = replace(inventory_of("a", "b/nvcc", folders=("c",)), scripts={"s": "a:b"}, ghosts=("g",))
    made = replace(made, sizes={"b/nvcc": "3"})
    wheels._save("ab", made)
    assert Wheels(settings(tmp_path))._load("ab") == made
    assert wheels._load("cd") is None
    (note,) = (tmp_path / "cache/inventories").iterdir()
    for text in ("", "[]", "{}", note.read_text().replace('"files"', '"file"')):
        note.write_text(text)
        assert wheels._load("ab") is None


def test_what_is_no_wheel_is_an_error_that_is_handled() -> None:
    for files in ({"a/x": b""}, {"a-1.dist-info/METADATA": b""}, {"a/b-1.dist-info/RECORD": b""}):
        with pytest.raises(KeyError):
            inventory.read("a", archive(files))


def source_of(data: bytes) -> Any:
    """Wheels of which every file has the same content."""
    return SimpleNamespace(content=lambda _wheel, _name: data)


def test_a_wheel_whose_file_is_not_that_of_its_record_is_named(tmp_path: Path) -> None:
    found = {WHEEL.sha256: inventory_of("a/x.py", "other")}
    for data, said in ((b"a/x.py", []), (b"else", ["contradicts its own RECORD about a/x.py"])):
        faults = patched._unpack(tmp_path, ["a/x.py", "lost"], [WHEEL], found, source_of(data))
        assert faults == [f"{WHEEL.filename} {one}" for one in said]
        assert (tmp_path / "a/x.py").read_bytes() == data


def test_a_wheel_is_asked_for_a_few_small_files_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outside, "MOST_FILES", 2)
    monkeypatch.setattr(outside, "MOST_BYTES", 4)
    plan: Any = SimpleNamespace(toolchain=None, resolution=SimpleNamespace(wheels=[WHEEL]))

    def entry(data: bytes) -> Entry:
        return Entry("file", 0o644, "0:0", len(data), sha256(data), "", "")

    def asked(data: bytes, *entries: Entry) -> list[bool]:
        confirm = outside._Confirm(source_of(data), plan)
        want = Want(origin="o", size=len(data), member="m", wheel=WHEEL.sha256)
        return [confirm(want, one) for one in entries]

    good = entry(b"1234")
    assert asked(b"1234", good, entry(b"12"), good, good) == [True, False, True, False]
    assert asked(b"1234", entry(b"4321"), good) == [False, True]
    assert asked(b"12345", entry(b"12345")) == [False]
