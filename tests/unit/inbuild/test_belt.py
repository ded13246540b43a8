"""The belt that restores torch, and the record of which torch is in effect after each layer."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from imagefactory.inbuild import belt
from imagefactory.inbuild.layer import Target

TARGET = Target("3.13", "aarch64-manylinux_2_40", None)
SITE = Path(TARGET.site)
CUDA = "from typing import Optional\n__version__ = '2.11.0+cu130'\ncuda: Optional[str] = '13.0'\n"
CPU = "from typing import Optional\n__version__ = '2.10.0+cpu'\ncuda: Optional[str] = None\n"
#: The version of CUDA, but not the code of the locked wheel.
PATCHED = CUDA + "# patched\n"


def write(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where layers are mounted; a fresh torch has two files."""

    def unpack(root: Path, target: Target) -> None:
        write(root / target.site / "torch" / "version.py", CUDA)
        write(root / target.site / "torch" / "lib.so", "machine code")
        write(root / target.site / "torch.dist-info" / "RECORD", "as uv wrote it")

    monkeypatch.setattr(belt, "unpack", unpack)
    return tmp_path / "in"


def layers(stack: Path, **torch: str | None) -> None:
    """Layers by their names, from the bottom up, each with a version.py of torch or none."""
    for number, (name, text) in enumerate(torch.items(), 1):
        root = stack / str(number) / "root"
        write(root / SITE / f"{name}.py")
        if text is not None:
            write(root / SITE / "torch" / "version.py", text)
            write(root / SITE / "torch" / "lib.so", "machine code")
        write(root.parent / "report.json", json.dumps({"layer": name, "dropped": []}))


def record(stack: Path, cuda: str = "") -> dict[str, Any]:
    out = stack.parent / "out"
    belt.main("2.11.0+cu130", cuda, TARGET, folder=stack, out=out)
    found: dict[str, Any] = json.loads((out / "report.json").read_text())
    return found


def overlay(stack: Path) -> dict[str, str]:
    root = stack.parent / "out" / "root"
    return {
        str(path.relative_to(root / SITE)): path.read_text()
        for path in root.rglob("*")
        if path.is_file()
    }


def test_the_belt_is_empty_when_nothing_swapped_torch(stack: Path) -> None:
    layers(stack, first=CUDA, second=None)
    record(stack)
    assert overlay(stack) == {}
    assert (stack.parent / "out/root").stat().st_mtime == 315532800


def test_the_belt_restores_what_a_later_layer_swapped(stack: Path) -> None:
    layers(stack, first=CUDA, second=PATCHED)
    (stack / "2/root" / SITE / "torch/lib.so").unlink()
    record(stack)
    assert overlay(stack) == {"torch/version.py": CUDA}


def test_files_are_compared_by_content_not_by_size_and_date(
    stack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers(stack, first=CUDA)
    (stack / "1/root" / SITE / "torch/lib.so").write_text("MACHINE CODE")

    def restore(fresh: Path, found: Sequence[belt.Layer], out: Path) -> None:
        for path in [*fresh.rglob("*"), *stack.rglob("*")]:
            os.utime(path, (1, 1))
        before(fresh, found, out)

    before = belt.restore
    monkeypatch.setattr(belt, "restore", restore)
    record(stack)
    assert overlay(stack) == {"torch/lib.so": "machine code"}


@pytest.mark.parametrize("number", [1, 2])
def test_the_topmost_file_counts_whichever_layer_is_right(stack: Path, number: int) -> None:
    layers(stack, first=CUDA, second=CUDA)
    (stack / str(number) / "root" / SITE / "torch/lib.so").write_text("other code")
    record(stack)
    assert overlay(stack) == ({"torch/lib.so": "machine code"} if number == 2 else {})


def test_what_python_compiled_and_the_installers_record_are_no_strangers(stack: Path) -> None:
    layers(stack, first=CUDA)
    write(stack / "1/root" / SITE / "torch/__pycache__/version.cpython-313.pyc", "compiled")
    write(stack / "1/root" / SITE / "torch.dist-info/RECORD", "another installer's")
    record(stack)
    assert overlay(stack) == {}


def test_the_belt_restores_what_no_layer_has_but_not_what_was_removed_on_purpose(
    stack: Path,
) -> None:
    layers(stack, first=CUDA)
    library = stack / "1/root" / SITE / "torch/lib.so"
    library.unlink()
    report = stack / "1/report.json"
    record(stack)
    assert overlay(stack) == {"torch/lib.so": "machine code"}

    (stack.parent / "out").rename(stack.parent / "before")
    dropped = [{"rule": "r", "why": "w", "files": [["torch/lib.so", 12]]}]
    report.write_text(json.dumps({"layer": "first", "dropped": dropped}))
    assert record(stack)["dropped"] == [{"layer": "first", **dropped[0]}]
    assert overlay(stack) == {}


def test_a_stranger_in_torchs_folder_stops_the_build(stack: Path) -> None:
    layers(stack, first=CUDA)
    write(stack / "1/root" / SITE / "torch" / "extra.py")
    with pytest.raises(
        SystemExit, match=r"1 files that the locked wheel does not have: .*extra\.py"
    ):
        record(stack)


def test_every_layer_is_recorded_in_order_with_the_torch_that_is_in_effect_after_it(
    stack: Path,
) -> None:
    others: dict[str, str | None] = {f"more{number}": None for number in range(9)}
    layers(stack, zero=None, one=CUDA, **others)
    rows = record(stack)["layers"]
    assert [row["group"] for row in rows] == ["zero", "one", *others]
    assert rows[0] == {"group": "zero", "torch": None}
    assert rows[1] == {"group": "one", "torch": {"version": "2.11.0+cu130", "cuda": "13.0"}}
    assert rows[2]["torch"] == rows[1]["torch"]


def test_a_layer_that_brings_another_torch_stops_the_build_and_is_named(stack: Path) -> None:
    layers(stack, torch=CUDA, vllm=CPU, late=CUDA)
    with pytest.raises(SystemExit) as caught:
        record(stack)
    assert caught.value.code == "after layer vllm: torch is 2.10.0+cpu, the lock says 2.11.0+cu130"
    assert not (stack.parent / "out").exists()


def test_cudas_headers_and_libraries_are_listed_by_name_whatever_layer_has_them(
    stack: Path,
) -> None:
    layers(stack, first=CUDA, second=None)
    write(stack / "1/root" / SITE / "nvidia/cu13/include/nv/target", "text")
    write(stack / "1/root" / SITE / "nvidia/cu13/lib/libcublas.so.13", "machine code")
    write(stack / "2/root" / SITE / "nvidia/cu13/include/curand.h", "text")
    write(stack / "2/root" / SITE / "nvidia/cu12/include/old.h", "text")
    record(stack, "nvidia/cu13")
    names = stack.parent / "out/cuda"
    files = {str(path.relative_to(names)) for path in names.rglob("*") if path.is_file()}
    assert files == {"include/nv", "include/curand.h", "lib/libcublas.so.13"}
    assert {(names / name).stat().st_size for name in files} == {0}


def test_without_compilers_nothing_is_listed(stack: Path) -> None:
    layers(stack, first=CUDA)
    record(stack)
    assert not (stack.parent / "out/cuda").exists()
