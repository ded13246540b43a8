"""Torch: what its probe finds in a tree, and the faults that turn its checks red."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.image_tree import TORCH, ImageTree
from support.verify_fakes import CONTENT, CUDA, Good
from support.verify_faults import Fault, red

from imagefactory.locking.lock import Resolution
from imagefactory.verifying.outside.judged import Finding, Judged
from imagefactory.verifying.receipt import Outcome

SITE = "opt/venv/lib/python3.13/site-packages"


def good(locked: Resolution) -> dict[str, Any]:
    """The facts of a good image."""
    return {
        "version": locked.torch.version,
        "cuda": locked.torch.cuda,
        "arch_flags": ["sm_120"] if locked.torch.cuda else [],
        "error": None,
        "damaged": [],
        "seconds": 2.0,
    }


def installed(image: Good, **changes: object) -> None:
    image.facts["torch"].update(changes)


def after_layer(image: Good, number: int, torch: dict[str, str | None] | None) -> None:
    image.manifest["layers"][number]["torch"] = torch


FAULTS = (
    Fault(
        check="torch-identity",
        name="a CPU torch in a CUDA image",
        breaks=lambda image: installed(image, version="2.11.0+cpu", cuda=None),
        says="2.11.0+cpu (no CUDA), locked is 2.11.0+cu130 (CUDA 13.0): a CPU build",
    ),
    Fault(
        check="torch-identity",
        name="another CUDA",
        breaks=lambda image: installed(image, cuda="12.8"),
        says="CUDA 12.8",
    ),
    Fault(
        check="torch-identity",
        name="no architectures",
        breaks=lambda image: installed(image, arch_flags=[]),
        says="no GPU architecture",
    ),
    Fault(
        check="torch-identity",
        name="an import that fails",
        breaks=lambda image: installed(image, version=None, error="OSError: libtorch_cuda.so"),
        says="libtorch_cuda.so",
    ),
    Fault(
        check="torch-identity",
        name="another lock",
        breaks=lambda image: setattr(image, "resolution", None),
        says="made from another lock",
    ),
    Fault(
        check="torch-files",
        name="a damaged file",
        breaks=lambda image: installed(image, damaged=["torch/_C.so: missing"]),
        says="torch/_C.so: missing",
    ),
    Fault(
        check="torch-layers",
        name="a CPU torch for the length of one layer",
        breaks=lambda image: after_layer(image, 1, {"version": "2.11.0+cpu", "cuda": None}),
        says="after layer cuda-torch: torch is 2.11.0+cpu",
    ),
    Fault(
        check="torch-layers",
        name="torch is gone after a layer",
        breaks=lambda image: after_layer(image, 2, None),
        says="layer vllm: torch is gone",
    ),
    Fault(
        check="torch-layers",
        name="no record of layers",
        breaks=lambda image: image.manifest.pop("layers"),
        says="has no layer with torch",
    ),
)


OUTSIDE = (
    (f"{SITE}/torch/_C.so", "changed", Outcome.FAIL),
    (f"{SITE}/torch/evil.py", "extra", Outcome.FAIL),
    (f"{SITE}/torch-2.11.0.dist-info/RECORD", "changed", Outcome.FAIL),
    (f"{SITE}/torchvision/_C.so", "changed", Outcome.PASS),
)


@pytest.mark.parametrize(("path", "part", "outcome"), OUTSIDE)
def test_files_of_torch_that_only_its_layers_were_read_for_are_judged_by_them(
    path: str, part: str, outcome: Outcome
) -> None:
    image = Good()
    installed(image, damaged=None)
    assert image.results()["torch-files"].outcome is Outcome.PASS
    image.content = replace(CONTENT, **{part: (Finding(path=path, what="has other content"),)})  # type: ignore[arg-type]
    assert image.results()["torch-files"].outcome is outcome


@pytest.mark.parametrize(
    ("content", "outcome"),
    [
        (None, Outcome.SKIP),
        (replace(CONTENT, error="no index answers"), Outcome.SKIP),
        (replace(CONTENT, error="a layer is damaged", damaged=True), Outcome.FAIL),
    ],
)
def test_files_that_were_looked_at_nowhere_do_not_pass(
    content: Judged | None, outcome: Outcome
) -> None:
    image = Good()
    installed(image, damaged=None)
    image.content = content
    result = image.results()["torch-files"]
    assert (result.outcome, result.required) == (outcome, True)


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_check_goes_red_for_its_fault_and_says_why(fault: Fault) -> None:
    assert fault.says in red(fault)


def test_a_cuda_cell_whose_lock_says_cpu_by_mistake_is_not_saved_by_agreeing_labels() -> None:
    image = Good(torch=CUDA)
    image.manifest["torch"] = {"version": "2.11.0+cpu", "cuda": None}
    installed(image, version="2.11.0+cpu", cuda=None)
    assert image.results()["torch-identity"].outcome is Outcome.FAIL


@pytest.mark.programs
def test_torch_is_described_by_what_its_import_says(tmp_path: Path) -> None:
    image = ImageTree(tmp_path)
    image.torch("2.11.0+cu130", "13.0")
    torch = image.facts("torch")
    assert (torch["version"], torch["cuda"], torch["error"]) == ("2.11.0+cu130", "13.0", None)
    assert torch["arch_flags"] == ["sm_80", "sm_120"]


@pytest.mark.programs
def test_a_torch_that_cannot_be_imported_is_a_finding_and_not_an_error(tmp_path: Path) -> None:
    image = ImageTree(tmp_path)
    image.write(
        "torch/__init__.py", "raise OSError('libtorch_cuda.so: cannot open shared object file')"
    )
    report = image.report()
    assert report["errors"] == {}
    assert (
        report["facts"]["torch"]["error"]
        == "OSError: libtorch_cuda.so: cannot open shared object file"
    )
    assert report["facts"]["extensions"]["loaded"] == []


@pytest.mark.programs
def test_what_torch_prints_does_not_hide_the_report(tmp_path: Path) -> None:
    image = ImageTree(tmp_path)
    image.write(
        "torch/__init__.py",
        "print('hello', end='')\n" + TORCH.format(version="1", cuda=None),
    )
    assert image.facts("torch")["version"] == "1"


@pytest.mark.programs
def test_files_of_torch_that_are_not_as_installed_are_named(tmp_path: Path) -> None:
    image = ImageTree(tmp_path)
    image.torch()
    good = image.write("torch/good.txt", "1234")
    image.write("torch/cut.txt", "12")
    image.distribution(
        "torch",
        "2.13.0",
        {"torch/good.txt": good.stat().st_size, "torch/cut.txt": 4, "torch/gone": 1},
    )
    assert image.facts("torch")["damaged"] == [
        "torch/cut.txt: 2 bytes, not 4",
        "torch/gone: missing",
    ]
