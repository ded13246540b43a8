"""What is left out of an install layer, and what must never be."""

from __future__ import annotations

import csv
import io
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagefactory.building.stack import trim
from imagefactory.building.tree import Kind, Tree

CUDA, SITE = "/opt/cuda", "opt/site-packages"


@pytest.fixture
def layer() -> Tree:
    return Tree()


def write(layer: Tree, *names: str, text: str = "x") -> None:
    for name in names:
        layer.file(f"{SITE}/{name}", text)


def cut(layer: Tree, cuda: str | None = None) -> list[dict[str, Any]]:
    return trim.trim(layer, SITE, cuda)


def files(layer: Tree) -> list[str]:
    return [path.removeprefix(f"{SITE}/") for path, one in layer if one.kind is not Kind.FOLDER]


def target(layer: Tree, name: str) -> str:
    return layer.entries[f"{SITE}/{name}"].target


def rules(report: list[dict[str, Any]]) -> dict[str, list[str]]:
    return {row["rule"]: [name for name, _ in row["files"]] for row in report}


def test_tests_that_nothing_uses_go_with_their_data(layer: Tree) -> None:
    write(
        layer,
        "pkg/__init__.py",
        "pkg/tests/__init__.py",
        "pkg/tests/test_a.py",
        "pkg/tests/data/big.bin",
    )
    assert rules(cut(layer))["tests"] == [
        "pkg/tests/__init__.py",
        "pkg/tests/data/big.bin",
        "pkg/tests/test_a.py",
    ]
    assert [path for path, _ in layer.below(f"{SITE}/pkg/")] == [f"{SITE}/pkg/__init__.py"]


def test_tests_that_a_module_imports_in_any_way_stay(layer: Tree) -> None:
    ways = {
        "absolute": "from absolute.sub.tests import helper",
        "plain": "import plain.sub.tests.helper as h",
        "relative": "def late():\n    from .sub.tests import helper",
        "from_package": "from from_package.sub import (\n    other,\n    tests,\n)",
        "in_a_string": 'NAME = "in_a_string.sub.tests.helper"',
    }
    for name, text in ways.items():
        write(layer, f"{name}/__init__.py", text=text)
        write(layer, f"{name}/sub/tests/test_a.py", f"{name}/sub/tests/helper.py")
    assert cut(layer) == []


@pytest.mark.parametrize("other", ["type X = = int", "print 'of Python 2'", "x = '\0'"])
def test_a_module_for_another_python_keeps_the_tests_that_it_imports(
    layer: Tree, other: str
) -> None:
    text = f"import pkg.tests.helper\nfrom .sub import (\n    tests,\n)\n{other}\n"
    write(layer, "pkg/__init__.py", text=text)
    write(layer, "pkg/tests/test_a.py", "pkg/tests/helper.py", "pkg/sub/tests/test_b.py")
    write(layer, "pkg/other/tests/test_c.py")
    assert rules(cut(layer)) == {"tests": ["pkg/other/tests/test_c.py"]}


@given(st.lists(st.sampled_from(["'", '"', ".", "a", "test", "tests", "_", " ", "\n"])))
def test_words_and_strings_are_found_as_by_one_pattern(parts: list[str]) -> None:
    data = "".join(parts).encode()
    assert trim._names_tests(data) == bool(re.search(rb"\btests?\b", data))
    found = {text.decode().replace(".", "/") for text in trim._STRING.findall(data)}
    assert found <= set(trim._strings(data))


def test_a_module_of_another_package_keeps_tests_too(layer: Tree) -> None:
    write(layer, "numba/tests/test_a.py", "numba/tests/support.py")
    write(layer, "other/module.py", text="from numba.tests.support import TestCase")
    assert cut(layer) == []


def test_tests_that_only_tests_import_go(layer: Tree) -> None:
    write(layer, "pkg/tests/test_a.py", text="from pkg.tests import helper")
    write(layer, "pkg/tests/helper.py")
    assert len(rules(cut(layer))["tests"]) == 2


def test_a_folder_or_package_that_is_only_called_test_stays(layer: Tree) -> None:
    write(
        layer,
        "pkg/test/data.json",
        "tests/test_of_a_package_named_tests.py",
        "pkg/testing/test_kit.py",
    )
    assert cut(layer) == []


def test_static_libraries_go_but_those_that_kernels_are_linked_with_stay(layer: Tree) -> None:
    write(
        layer,
        "triton/lib/libcupti_static.a",
        "nvidia/nvshmem/lib/libnvshmem_device.a",
        "nvidia/x/libcudadevrt.a",
    )
    assert rules(cut(layer)) == {"static libraries": ["triton/lib/libcupti_static.a"]}


def test_second_compilers_become_links_to_the_images_own(layer: Tree) -> None:
    names = (
        "nvidia/cu13/bin/nvcc",
        "nvidia/cu13/nvvm/bin/cicc",
        "triton/backends/nvidia/bin/ptxas-blackwell",
    )
    write(
        layer,
        *names,
        "nvidia/cu13/nvvm/lib64/libnvvm.so.4",
        "triton/backends/nvidia/bin/cuobjdump",
    )
    assert rules(cut(layer, CUDA)) == {"second compilers": sorted(names)}
    assert [target(layer, name) for name in names] == [
        "/opt/cuda/bin/nvcc",
        "/opt/cuda/nvvm/bin/cicc",
        "/opt/cuda/bin/ptxas",
    ]


def test_compilers_stay_where_the_image_has_no_others(layer: Tree) -> None:
    write(layer, "nvidia/cu13/bin/nvcc")
    assert cut(layer) == []


def test_equal_libraries_under_several_version_names_are_one(layer: Tree) -> None:
    write(
        layer,
        "lib/libcupti.so",
        "lib/libcupti.so.12",
        "lib/libcupti.so.2025.1.1",
        "lib/libother.so.12",
    )
    write(layer, "lib/libz.so", text="a")
    write(layer, "lib/libz.so.1", text="b")
    assert rules(cut(layer)) == {"copies of libraries": ["lib/libcupti.so", "lib/libcupti.so.12"]}
    assert target(layer, "lib/libcupti.so") == "libcupti.so.2025.1.1"
    assert layer.text(f"{SITE}/lib/libcupti.so.12") == "x"


def test_compiled_python_and_wheels_go(layer: Tree) -> None:
    write(layer, "a/__pycache__/m.cpython-313.pyc", "a/bundled/pip.whl", "a/m.py")
    cut(layer)
    assert files(layer) == ["a/m.py"]


def test_records_stay_true(layer: Tree) -> None:
    rows = [
        ["a/tests/test_m.py", "sha256=1", "1"],
        ["a,b.py", "sha256=2", "1"],
        ["lib/liba.so", "sha256=3", "1"],
    ]
    write(
        layer,
        "a/tests/test_m.py",
        "a,b.py",
        "lib/liba.so",
        "lib/liba.so.1",
        "other-1.dist-info/RECORD",
    )
    record, text = f"{SITE}/a-1.dist-info/RECORD", io.StringIO()
    csv.writer(text).writerows(rows)
    layer.file(record, text.getvalue())
    cut(layer)
    found = list(csv.reader(io.StringIO(layer.text(record), newline="")))
    assert found == [rows[1], ["lib/liba.so", "", ""]]
    assert layer.text(f"{SITE}/other-1.dist-info/RECORD") == "x"


def test_trimming_twice_finds_nothing_more_and_the_report_names_every_file(layer: Tree) -> None:
    write(
        layer, "a/tests/test_m.py", "lib/liba.so", "lib/liba.so.1", "nvidia/cu13/bin/ptxas", "a.a"
    )
    first = cut(layer, CUDA)
    assert {name for row in first for name, _ in row["files"]} == {
        "a/tests/test_m.py",
        "lib/liba.so",
        "nvidia/cu13/bin/ptxas",
        "a.a",
    }
    assert cut(layer, CUDA) == []


def test_a_layer_without_packages_is_left_as_it_is(layer: Tree) -> None:
    assert cut(layer) == []


def test_every_rule_says_in_one_line_why_files_go() -> None:
    for _, rule in trim.RULES:
        assert rule.__doc__
        assert "\n" not in rule.__doc__
