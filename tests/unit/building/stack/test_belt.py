"""The belt that restores torch, and the record of which torch is in effect after each layer."""

from __future__ import annotations

from typing import Any

import pytest

from imagefactory.building.stack import belt
from imagefactory.building.stack.belt import Layer
from imagefactory.building.tree import Kind, Tree
from imagefactory.errors import CheckFailedError

SITE = "opt/venv/lib/python3.13/site-packages"
VERSION = "2.11.0+cu130"
CUDA = "from typing import Optional\n__version__ = '2.11.0+cu130'\ncuda: Optional[str] = '13.0'\n"
CPU = "from typing import Optional\n__version__ = '2.10.0+cpu'\ncuda: Optional[str] = None\n"
#: The version of CUDA, but not the code of the locked wheel.
PATCHED = CUDA + "# patched\n"


def tree(files: dict[str, str]) -> Tree:
    made = Tree()
    for name, text in files.items():
        made.file(f"{SITE}/{name}", text)
    return made


def torch(text: str = CUDA) -> dict[str, str]:
    return {"torch/version.py": text, "torch/lib.so": "machine code"}


def layers(**files: dict[str, str]) -> list[Layer]:
    """Layers by their names, from the bottom up."""
    return [
        Layer(name=name, tree=tree({f"{name}.py": "", **more}), dropped=[])
        for name, more in files.items()
    ]


def made(found: list[Layer]) -> tuple[dict[str, str], dict[str, Any]]:
    """The files that are restored, and the report."""
    fresh = tree({**torch(), "torch.dist-info/RECORD": "as it was installed"})
    out, report = belt.make(fresh, found, SITE, VERSION)
    files = {
        path.removeprefix(f"{SITE}/"): entry.read().decode()
        for path, entry in out
        if entry.kind is Kind.FILE
    }
    return files, report


def test_the_belt_is_empty_when_nothing_swapped_torch() -> None:
    assert made(layers(first=torch(), second={}))[0] == {}


def test_the_belt_restores_what_a_later_layer_swapped() -> None:
    found = layers(first=torch(), second={"torch/version.py": PATCHED})
    assert made(found)[0] == {"torch/version.py": CUDA}


def test_files_of_one_size_are_compared_by_content() -> None:
    found = layers(first={**torch(), "torch/lib.so": "MACHINE CODE"})
    assert made(found)[0] == {"torch/lib.so": "machine code"}


@pytest.mark.parametrize("wrong", ["first", "second"])
def test_the_topmost_file_counts_whichever_layer_is_right(wrong: str) -> None:
    files = {name: torch() for name in ("first", "second")}
    files[wrong] = {**torch(), "torch/lib.so": "other code"}
    restored = {"torch/lib.so": "machine code"} if wrong == "second" else {}
    assert made(layers(**files))[0] == restored


def test_the_record_of_another_installer_is_no_swap() -> None:
    assert made(layers(first={**torch(), "torch.dist-info/RECORD": "another's"}))[0] == {}


def test_a_link_where_torch_has_a_file_is_a_swap_unless_the_build_made_it() -> None:
    (first,) = layers(first=torch())
    first.tree.symlink(f"{SITE}/torch/lib.so", "elsewhere")
    assert made([first])[0] == {"torch/lib.so": "machine code"}
    linked = {"rule": "copies", "why": "w", "files": [["torch/lib.so", 12]]}
    assert made([Layer(name="first", tree=first.tree, dropped=[linked])])[0] == {}


def test_the_belt_restores_what_no_layer_has_but_not_what_was_removed_on_purpose() -> None:
    (first,) = layers(first={"torch/version.py": CUDA})
    assert made([first])[0] == {"torch/lib.so": "machine code"}
    dropped = {"rule": "r", "why": "w", "files": [["torch/lib.so", 12]]}
    files, report = made([Layer(name="first", tree=first.tree, dropped=[dropped])])
    assert files == {}
    assert report["dropped"] == [{"layer": "first", **dropped}]


def test_a_stranger_in_torchs_folder_stops_the_build() -> None:
    with pytest.raises(CheckFailedError, match=r"1 files that the locked wheel does not have"):
        made(layers(first=torch(), second={"torch/extra.py": ""}))


def test_every_layer_is_recorded_in_order_with_the_torch_that_is_in_effect_after_it() -> None:
    rows = made(layers(zero={}, one=torch(), two={}))[1]["layers"]
    locked = {"version": "2.11.0+cu130", "cuda": "13.0"}
    assert rows == [
        {"group": "zero", "torch": None},
        {"group": "one", "torch": locked},
        {"group": "two", "torch": locked},
    ]


def test_a_layer_that_brings_another_torch_stops_the_build_and_is_named() -> None:
    with pytest.raises(CheckFailedError) as caught:
        made(layers(torch=torch(), vllm={"torch/version.py": CPU}, late=torch()))
    (problem,) = caught.value.problems
    assert problem.what == "after layer vllm, torch is 2.10.0+cpu; the lock has 2.11.0+cu130"
