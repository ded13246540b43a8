"""What is left out of an install layer, and what must never be."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from imagefactory.inbuild import trim

CUDA = "/opt/cuda"


def write(site: Path, *names: str, text: str = "x") -> None:
    for name in names:
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)


def rules(report: list[dict[str, Any]]) -> dict[str, list[str]]:
    return {row["rule"]: [name for name, _ in row["files"]] for row in report}


def test_tests_that_nothing_uses_go_with_their_data(tmp_path: Path) -> None:
    write(
        tmp_path,
        "pkg/__init__.py",
        "pkg/tests/__init__.py",
        "pkg/tests/test_a.py",
        "pkg/tests/data/big.bin",
    )
    assert rules(trim.trim(tmp_path, None))["tests"] == [
        "pkg/tests/__init__.py",
        "pkg/tests/data/big.bin",
        "pkg/tests/test_a.py",
    ]
    assert [path.name for path in (tmp_path / "pkg").iterdir()] == ["__init__.py"]


def test_tests_that_a_module_imports_in_any_way_stay(tmp_path: Path) -> None:
    ways = {
        "absolute": "from absolute.sub.tests import helper",
        "plain": "import plain.sub.tests.helper as h",
        "relative": "def late():\n    from .sub.tests import helper",
        "from_package": "from from_package.sub import (\n    other,\n    tests,\n)",
        "in_a_string": 'NAME = "in_a_string.sub.tests.helper"',
    }
    for name, text in ways.items():
        write(tmp_path, f"{name}/__init__.py", text=text)
        write(tmp_path, f"{name}/sub/tests/test_a.py", f"{name}/sub/tests/helper.py")
    assert trim.trim(tmp_path, None) == []


def test_a_module_of_another_package_keeps_tests_too(tmp_path: Path) -> None:
    write(tmp_path, "numba/tests/test_a.py", "numba/tests/support.py")
    write(tmp_path, "other/module.py", text="from numba.tests.support import TestCase")
    assert trim.trim(tmp_path, None) == []


def test_tests_that_only_tests_import_go(tmp_path: Path) -> None:
    write(tmp_path, "pkg/tests/test_a.py", text="from pkg.tests import helper")
    write(tmp_path, "pkg/tests/helper.py")
    assert len(rules(trim.trim(tmp_path, None))["tests"]) == 2


def test_a_folder_or_package_that_is_only_called_test_stays(tmp_path: Path) -> None:
    write(
        tmp_path,
        "pkg/test/data.json",
        "tests/test_of_a_package_named_tests.py",
        "pkg/testing/test_kit.py",
    )
    assert trim.trim(tmp_path, None) == []


def test_static_libraries_go_but_those_that_kernels_are_linked_with_stay(tmp_path: Path) -> None:
    write(
        tmp_path,
        "triton/lib/libcupti_static.a",
        "nvidia/nvshmem/lib/libnvshmem_device.a",
        "nvidia/x/libcudadevrt.a",
    )
    assert rules(trim.trim(tmp_path, None)) == {
        "static libraries": ["triton/lib/libcupti_static.a"]
    }


def test_second_compilers_become_links_to_the_images_own(tmp_path: Path) -> None:
    names = (
        "nvidia/cu13/bin/nvcc",
        "nvidia/cu13/nvvm/bin/cicc",
        "triton/backends/nvidia/bin/ptxas-blackwell",
    )
    write(
        tmp_path,
        *names,
        "nvidia/cu13/nvvm/lib64/libnvvm.so.4",
        "triton/backends/nvidia/bin/cuobjdump",
    )
    assert rules(trim.trim(tmp_path, CUDA)) == {"second compilers": sorted(names)}
    assert [str((tmp_path / name).readlink()) for name in names] == [
        "/opt/cuda/bin/nvcc",
        "/opt/cuda/nvvm/bin/cicc",
        "/opt/cuda/bin/ptxas",
    ]


def test_compilers_stay_where_the_image_has_no_others(tmp_path: Path) -> None:
    write(tmp_path, "nvidia/cu13/bin/nvcc")
    assert trim.trim(tmp_path, None) == []


def test_equal_libraries_under_several_version_names_are_one(tmp_path: Path) -> None:
    write(
        tmp_path,
        "lib/libcupti.so",
        "lib/libcupti.so.12",
        "lib/libcupti.so.2025.1.1",
        "lib/libother.so.12",
    )
    write(tmp_path, "lib/libz.so", text="a")
    write(tmp_path, "lib/libz.so.1", text="b")
    assert rules(trim.trim(tmp_path, None)) == {
        "copies of libraries": ["lib/libcupti.so", "lib/libcupti.so.12"]
    }
    assert (tmp_path / "lib/libcupti.so").readlink() == Path("libcupti.so.2025.1.1")
    assert (tmp_path / "lib/libcupti.so.12").read_text() == "x"


def test_compiled_python_and_wheels_go(tmp_path: Path) -> None:
    write(tmp_path, "a/__pycache__/m.cpython-313.pyc", "a/bundled/pip.whl", "a/m.py")
    assert [p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file()] != [
        "a/m.py"
    ]
    trim.trim(tmp_path, None)
    assert [p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file()] == [
        "a/m.py"
    ]


def test_records_stay_true(tmp_path: Path) -> None:
    rows = [
        ["a/tests/test_m.py", "sha256=1", "1"],
        ["a,b.py", "sha256=2", "1"],
        ["lib/liba.so", "sha256=3", "1"],
    ]
    write(
        tmp_path,
        "a/tests/test_m.py",
        "a,b.py",
        "lib/liba.so",
        "lib/liba.so.1",
        "other-1.dist-info/RECORD",
    )
    record = tmp_path / "a-1.dist-info" / "RECORD"
    record.parent.mkdir()
    with record.open("w", newline="") as out:
        csv.writer(out).writerows(rows)
    trim.trim(tmp_path, None)
    with record.open(newline="") as text:
        assert list(csv.reader(text)) == [rows[1], ["lib/liba.so", "", ""]]
    assert (tmp_path / "other-1.dist-info/RECORD").read_text() == "x"


def test_trimming_twice_finds_nothing_more_and_the_report_names_every_file(tmp_path: Path) -> None:
    site = tmp_path / "site"
    write(site, "a/tests/test_m.py", "lib/liba.so", "lib/liba.so.1", "nvidia/cu13/bin/ptxas", "a.a")
    first = trim.trim(site, CUDA)
    assert {name for row in first for name, _ in row["files"]} == {
        "a/tests/test_m.py",
        "lib/liba.so",
        "nvidia/cu13/bin/ptxas",
        "a.a",
    }
    assert trim.trim(site, CUDA) == []


def test_a_layer_without_packages_is_left_as_it_is(tmp_path: Path) -> None:
    assert trim.trim(tmp_path / "none", None) == []


def test_every_rule_says_in_one_line_why_files_go() -> None:
    for _, rule in trim.RULES:
        assert rule.__doc__
        assert "\n" not in rule.__doc__
