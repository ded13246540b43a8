"""What every cell needs, what a ref is called, and where an inherited item is written."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.matrices import problems, write

from imagefactory.matrix import expand, explain, inherit
from imagefactory.matrix.cell import VllmRef
from imagefactory.matrix.schema import RefEntry
from imagefactory.system.yamlfile import Location


@pytest.mark.parametrize(
    ("axis", "old", "new"),
    [
        ("flavor", "  flavor: gb10\n", ""),
        ("platform", "  platform: linux/arm64\n", ""),
        ("python", '  python: ["3.13"]\n', ""),
        ("channel", "  channel: [cu130]\n", ""),
        ("vllm", '  - vllm: ["0.22.1", "0.33.0"]\n    torch', "  - torch"),
        ("torch", '\n    torch: ["2.11.0", "2.14.0"]', ""),
    ],
)
def test_a_cell_without_an_axis_that_all_need_is_an_error(
    tmp_path: Path, axis: str, old: str, new: str
) -> None:
    found = problems(write(tmp_path, old, new))
    said = [one.what for one in found if one.code == "matrix-missing-axis"]
    assert said == [f"this cell has no value for {axis}"]


@pytest.mark.parametrize(
    ("axis", "old", "new"),
    [
        ("python", '  python: ["3.13"]\n', '  python: ["3"]\n'),
        ("cuda", '  cuda: ["13.0"]\n', '  cuda: ["13"]\n'),
        ("vllm", '"0.22.1", ', '"x", '),
        ("torch", '["2.11.0", ', '["x", '),
    ],
)
def test_a_version_has_the_form_that_its_axis_wants(
    tmp_path: Path, axis: str, old: str, new: str
) -> None:
    found = [one for one in problems(write(tmp_path, old, new)) if "bad-version" in one.code]
    assert found
    assert all(f": {axis} is " in one.what for one in found)


@pytest.mark.parametrize(
    ("ref", "words"),
    [
        ("main", "main"),
        ("feature/x", "feature-x"),
        ("a1" * 20, "a1a1a1a1a1a1"),
        ("a" * 39, "a" * 39),
        ("a" * 19 + "-" + "b" * 20, "a" * 19 + "-" + "b" * 20),
    ],
)
def test_a_commit_is_called_by_its_first_digits_and_a_branch_by_its_name(
    ref: str, words: str
) -> None:
    assert RefEntry(base="0.33.0", ref=ref).words == words
    assert RefEntry(base="0.33.0", ref=ref, prs=[7, 12]).words == f"{words}-pr7-pr12"
    assert RefEntry(base="0.33.0", ref=ref, name="own").words == "own"


def test_each_item_of_a_list_has_the_position_of_what_was_inherited_or_replaced_it() -> None:
    moved, inherited = list[object](), list[object]()
    positions: Any = SimpleNamespace(
        move=lambda *given: moved.append(given), inherit=lambda *given: inherited.append(given)
    )
    section = inherit._Section("flavors", {}, positions)
    above, own = ["a==1", "b", "d"], ["a==2", "c"]
    assert section._joined(above, ("x",), own, ("y",)) == ["b", "d", "a==2", "c"]
    assert moved == [(("y", 1), ("y", 3)), (("y", 0), ("y", 2))]
    assert inherited == [(("x", 1), ("y", 0)), (("x", 2), ("y", 1))]


def test_a_repository_is_the_same_one_with_a_slash_at_its_end() -> None:
    written = RefEntry(repository="https://h.example/vllm/", base="0.33.0", ref="main")
    found = expand._value(written, Location(file="matrix.yaml", line=7)).ref
    assert found is not None
    assert found.repository == "https://h.example/vllm"


@pytest.mark.parametrize(("commit", "shown"), [("ab" * 20, "ab" * 20), ("", "not locked")])
def test_a_ref_is_explained_with_its_commit_and_what_its_binaries_are_from(
    commit: str, shown: str
) -> None:
    where = Location(file="matrix.yaml", line=7)
    ref = VllmRef(
        repository="https://h/r",
        ref="main",
        prs=(),
        base="0.33.0",
        tools=None,
        words="main",
        location=where,
        commit=commit,
    )
    cell: Any = SimpleNamespace(ref=ref)
    assert list(explain._ref(cell)) == [
        ("ref", str(ref), where),
        ("commit", shown, where),
        ("binaries", "vllm 0.33.0", where),
    ]
    nothing: Any = SimpleNamespace(ref=None)
    assert list(explain._ref(nothing)) == []
