"""Contents: what their probe finds in a tree, and the faults that turn their checks red."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.image_tree import ImageTree
from support.verify_fakes import CONTENT, Good
from support.verify_faults import Fault, red

from imagefactory.locking.lock import Resolution
from imagefactory.verifying.checks.contents import probe
from imagefactory.verifying.outside.judged import Finding
from imagefactory.verifying.probe_core import Context
from imagefactory.verifying.receipt import Outcome


def good(_: Resolution) -> dict[str, Any]:
    """The facts of a good image."""
    return {"unused": [], "dangling": [], "missing": [], "seconds": 2.0}


FAULTS = (
    Fault(
        check="files-complete",
        name="a file that a RECORD names does not exist",
        breaks=lambda image: image.facts["contents"].update(missing=["numpy/core.py"]),
        says="numpy/core.py is missing",
    ),
    Fault(
        check="files-complete",
        name="a link to a compiler that does not exist",
        breaks=lambda image: image.facts["contents"].update(dangling=["/site/triton/ptxas"]),
        says="/site/triton/ptxas is a dangling link",
    ),
    Fault(
        check="nothing-unused",
        name="an installer's cache",
        breaks=lambda image: image.facts["contents"].update(unused=["/root/.cache/pip/http"]),
        says="1 unused file: /root/.cache/pip/http",
    ),
)


@pytest.mark.parametrize(
    ("check", "part", "outcome"),
    [
        ("files-complete", "changed", Outcome.FAIL),
        ("files-complete", "extra", Outcome.PASS),
        ("nothing-unused", "changed", Outcome.PASS),
        ("nothing-unused", "extra", Outcome.FAIL),
    ],
)
def test_an_image_whose_layers_were_read_instead_is_judged_by_them(
    check: str, part: str, outcome: Outcome
) -> None:
    image = Good()
    image.facts["contents"] = {"unused": [], "seconds": 0.0}
    assert image.results()[check].outcome is Outcome.PASS
    finding = Finding(path="opt/venv/x.pyc", what="is wrong")
    image.content = replace(CONTENT, **{part: (finding,)})  # type: ignore[arg-type]
    result = image.results()[check]
    assert result.outcome is outcome
    assert ("/opt/venv/x.pyc is wrong" in result.detail) is (outcome is Outcome.FAIL)


def test_an_installer_s_cache_is_seen_inside_even_if_the_layers_are_read(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "http").touch()
    context = Context(site=tmp_path, home=tmp_path, manifest={}, files_judged=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probe, "CACHES", (str(tmp_path / "cache"),))
        assert probe.facts(context) == {"unused": [str(tmp_path / "cache" / "http")]}
    image = Good()
    image.facts["contents"] = {"unused": ["/root/.cache/pip/http"], "seconds": 0.0}
    assert image.results()["nothing-unused"].outcome is Outcome.FAIL


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_check_goes_red_for_its_fault_and_says_why(fault: Fault) -> None:
    assert fault.says in red(fault)


@pytest.mark.programs
def test_missing_and_unused_files_and_dangling_links_are_named(tmp_path: Path) -> None:
    image = ImageTree(tmp_path)
    image.distribution(
        "numpy", "2.0", {"numpy/here.py": 4, "numpy/gone.py": 4, "../../../bin/gone": 1}
    )
    image.write("numpy/here.py", "1234")
    image.write("numpy/__pycache__/here.cpython-313.pyc", "")
    image.write("numpy/lib/libnpymath.a", "")
    image.write("numpy/old.pyo", "")
    image.write("numpy/wheel.whl", "")
    image.write("nvidia/nvshmem/lib/libnvshmem_device.a", "")
    (image.site / "numpy" / "ptxas").symlink_to("/nowhere/ptxas")
    contents = image.facts("contents")
    assert contents["missing"] == ["../../../bin/gone", "numpy/gone.py"]
    assert [Path(name).name for name in contents["unused"] if name.startswith(str(image.site))] == [
        "here.cpython-313.pyc",
        "libnpymath.a",
        "old.pyo",
        "wheel.whl",
    ]
    assert contents["dangling"] == [str(image.site / "numpy" / "ptxas")]


@pytest.mark.programs
def test_a_dangling_link_in_the_compilers_folder_is_named(tmp_path: Path) -> None:
    image = ImageTree(tmp_path)
    (tmp_path / "cuda").mkdir()
    (tmp_path / "cuda" / "lib64").symlink_to("lib")
    (tmp_path / "cuda" / "include").symlink_to(".")
    (tmp_path / "cuda" / "libcudart_static.a").touch()
    found = image.facts("contents", CUDA_HOME=str(tmp_path / "cuda"))
    assert found["dangling"] == [str(tmp_path / "cuda" / "lib64")]
    assert [name for name in found["unused"] if name.startswith(str(tmp_path))] == []


@pytest.mark.programs
def test_what_other_probes_leave_behind_is_not_blamed_on_the_image(tmp_path: Path) -> None:
    image = ImageTree(tmp_path)
    image.torch()
    contents = image.facts("contents")
    assert (image.site / "torch" / "__pycache__").exists()
    assert not [name for name in contents["unused"] if name.startswith(str(image.site))]
