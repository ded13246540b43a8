"""New patches, and the ranges of their variants."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet
from support.releases import BASE

from imagefactory.errors import InputError
from imagefactory.patching import authoring, catalog, port
from imagefactory.patching.measure import Bench
from imagefactory.settings import Settings

minors = st.integers(min_value=10, max_value=40)


@given(st.lists(st.tuples(minors, minors), max_size=5), minors)
def test_removing_a_release_from_a_range_leaves_exactly_the_others(
    pairs: list[tuple[int, int]], minor: int
) -> None:
    low, high = authoring.release_range("vllm", f"0.{minor}.1")
    for first, last in pairs:
        wanted = SpecifierSet(f">=0.{first},<0.{last}")
        if first >= last:
            continue
        left = authoring.without(wanted, low, high)
        covered = {m for a, b in left for m in range(40) if _minor(a) <= m < _minor(b)}
        assert covered == set(range(first, last)) - {minor}


def _minor(version: object) -> int:
    return int(str(version).partition(".")[2])


def test_a_new_patch_starts_from_a_work_tree_and_becomes_a_draft(
    tmp_path: Path, using: Settings
) -> None:
    work = port.begin_new("vllm/fresh", "0.22.0", tmp_path / "patches", using)
    with pytest.raises(InputError) as caught:
        port.finish(work, None, tmp_path / "patches", Bench(using), using)
    assert caught.value.problems[0].code == "port-unchanged"
    (work.tree / "pkg/x.py").write_text("mine\n")
    (work.tree / "pkg/new.py").write_text("added\n")
    assert port.finish(work, None, tmp_path / "patches", Bench(using), using).outcome == "draft"
    draft = catalog.load(tmp_path / "patches")["vllm/fresh"]
    assert draft.draft
    text = draft.variants[0].diff.read_text()
    assert "+++ b/pkg/new.py" in text
    assert "+mine" in text


def test_a_new_patch_can_come_from_a_tree_that_was_edited_elsewhere(
    tmp_path: Path, using: Settings
) -> None:
    tree = tmp_path / "edited"
    (tree / "pkg").mkdir(parents=True)
    (tree / "pkg/x.py").write_text(BASE.replace("c\n", "patched\n"))
    port.from_tree("vllm/fresh", "0.20.0", tree, tmp_path / "patches", using)
    assert (
        "+patched" in catalog.load(tmp_path / "patches")["vllm/fresh"].variants[0].diff.read_text()
    )


@pytest.mark.parametrize("name", ["fresh", "nobody/fresh", "vllm/", "vllm/../x", "vllm/Fresh"])
def test_an_invalid_name_is_rejected(tmp_path: Path, using: Settings, name: str) -> None:
    with pytest.raises(InputError) as caught:
        port.begin_new(name, "0.20.0", tmp_path / "patches", using)
    assert caught.value.problems[0].code == "patch-name"
