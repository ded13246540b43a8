"""New patches, and the ranges of their variants."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from support.patches import DIFF, PATCH, UNPROVEN, make
from support.releases import BASE

from imagefactory.errors import InputError
from imagefactory.patching import authoring, catalog, port
from imagefactory.patching.authoring import Bounds, Words
from imagefactory.patching.measure import Bench
from imagefactory.patching.patch import IMPORTED, Origin
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


@pytest.mark.programs
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


@pytest.mark.programs
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


def bounds(text: str) -> Bounds:
    low, high = text.split()
    return Version(low) if low != "-" else None, Version(high) if high != "-" else None


@pytest.mark.parametrize(
    ("specifier", "half_open"),
    [
        (">=0.22,<0.24", "0.22 0.24"),
        (">=0.22", "0.22 -"),
        ("<0.24", "- 0.24"),
        ("==0.22.1", "0.22.1 0.22.1.1"),
        ("==0.22", "0.22 0.22.0.1"),
        ("==0.22.*", "0.22 0.23"),
        ("==1.*", "1 2"),
    ],
)
def test_a_specifier_is_a_half_open_range(specifier: str, half_open: str) -> None:
    assert authoring.bounds_of(SpecifierSet(specifier)) == bounds(half_open)


@pytest.mark.parametrize("specifier", ["~=0.22", "!=0.22", "<=0.22", ">0.22", "===0.22"])
def test_any_other_specifier_is_left_to_its_author(specifier: str) -> None:
    with pytest.raises(InputError, match="patch-bad-versions"):
        authoring.bounds_of(SpecifierSet(specifier))


@pytest.mark.parametrize(
    ("project", "version", "half_open"),
    [
        ("vllm", "0.33.1", "0.33 0.34"),
        ("flashinfer", "0.6.4", "0.6.4 0.6.5"),
        ("flashinfer", "0.6.11.post2", "0.6.11 0.6.12"),
    ],
)
def test_what_a_diff_covers_depends_on_the_project(
    project: str, version: str, half_open: str
) -> None:
    assert authoring.release_range(project, version) == bounds(half_open)


@pytest.mark.parametrize(
    ("rows", "joined"),
    [
        ([("0.21 0.22", "a"), ("0.20 0.21", "a")], [("0.20 0.22", "a")]),
        ([("0.20 0.21", "a"), ("0.22 0.23", "a")], [("0.20 0.21", "a"), ("0.22 0.23", "a")]),
        ([("0.21 0.22", "b"), ("- 0.21", "a")], [("- 0.21", "a"), ("0.21 0.22", "b")]),
        ([("0.22 -", "a"), ("0.21 0.22", "a"), ("- 0.21", "a")], [("- -", "a")]),
    ],
)
def test_neighbours_with_the_same_diff_become_one_range(
    rows: list[tuple[str, str]], joined: list[tuple[str, str]]
) -> None:
    found = authoring._joined([(bounds(text), name) for text, name in rows])
    assert found == [(bounds(text), name) for text, name in joined]


def test_a_range_is_written_as_it_is_read() -> None:
    for text in (">=0.22,<0.24", ">=0.22", "<0.24"):
        assert authoring._range_text(authoring.bounds_of(SpecifierSet(text))) == text


def ranges(patch_yaml: Path) -> list[str]:
    """The ranges of the variants, as they are written."""
    return re.findall(r"- versions: (.*)\n +diff:", patch_yaml.read_text())


def test_a_port_leaves_the_ranges_of_other_variants_as_they_are_written(tmp_path: Path) -> None:
    text = PATCH.replace(">=0.22,<0.23", "==0.22.0").replace('">=0.33,<0.34"', "'<0.34, >=0.33'")
    file = make(tmp_path, text=text) / "patch.yaml"
    (patch,) = catalog.load(tmp_path / "patches").values()
    authoring.add_variant(patch, "0.24.0", DIFF.replace("zwei", "tre"))
    assert ranges(file) == ['"==0.22.0"', '">=0.24,<0.25"', "'<0.34, >=0.33'"]


@pytest.mark.parametrize(
    ("before", "version", "after"),
    [
        # one of the same minor that is not about this release stays
        ("==0.22.0", "0.22.1", ["==0.22.0 a.diff", ">=0.22.0.1,<0.23 0.22.1.diff"]),
        ("==0.22.1", "0.22.0", [">=0.22,<0.22.1 0.22.diff", "==0.22.1 a.diff"]),
        (">=0.22.1,<0.23", "0.22.0", [">=0.22,<0.22.1 0.22.diff", ">=0.22.1,<0.23 a.diff"]),
        ("<0.22.1", "0.22.2", ["<0.22.1 a.diff", ">=0.22.1,<0.23 0.22.2.diff"]),
        # one that is loses this release and those after it, and no earlier one
        (">=0.22,<0.23", "0.22.1", [">=0.22,<0.22.1 a.diff", ">=0.22.1,<0.23 0.22.1.diff"]),
        (">=0.20", "0.22.1.post1", [
            ">=0.20,<0.22.1 a.diff", ">=0.22.1,<0.23 0.22.1.post1.diff", ">=0.23 a.diff"
        ]),
        (">=0.22,<0.23", "0.22.0", [">=0.22,<0.23 0.22.diff"]),
        ("==0.22.1", "0.22.1", [">=0.22,<0.23 0.22.diff"]),
    ],
)  # fmt: skip
def test_a_port_takes_no_release_from_a_variant_that_has_it_for_another_one(
    tmp_path: Path, before: str, version: str, after: list[str]
) -> None:
    text = PATCH.replace(">=0.22,<0.23", before)
    text = text.replace('  - versions: ">=0.33,<0.34"\n    diff: b.diff\n', "")
    file = make(tmp_path, text=text) / "patch.yaml"
    (patch,) = catalog.load(tmp_path / "patches").values()
    authoring.add_variant(patch, version, DIFF.replace("zwei", "tre"))
    rows = yaml.safe_load(file.read_text())["variants"]
    assert [f"{row['versions']} {row['diff']}" for row in rows] == after
    assert all((file.parent / row["diff"]).is_file() for row in rows)


def test_a_port_to_a_release_beside_a_single_one_with_the_same_diff_joins_them(
    tmp_path: Path,
) -> None:
    file = make(tmp_path, text=PATCH.replace(">=0.22,<0.23", "==0.22.0")) / "patch.yaml"
    (patch,) = catalog.load(tmp_path / "patches").values()
    authoring.add_variant(patch, "0.22.1", DIFF)
    assert ranges(file)[0] == '">=0.22.0,<0.23"'


def test_a_range_that_a_port_extends_or_cuts_is_written_anew(tmp_path: Path) -> None:
    text = PATCH.replace(">=0.22,<0.23", "==0.22.*").replace(">=0.33,<0.34", ">=0.33, <0.35")
    file = make(tmp_path, text=text) / "patch.yaml"
    (patch,) = catalog.load(tmp_path / "patches").values()
    authoring.add_variant(patch, "0.23.0", DIFF)
    (patch,) = catalog.load(tmp_path / "patches").values()
    authoring.add_variant(patch, "0.33.0", DIFF.replace("zwei", "tre"))
    assert ranges(file) == ['">=0.22,<0.24"', '">=0.33,<0.34"', '">=0.34,<0.35"']


def test_a_port_of_a_stock_patch_leaves_its_single_releases_as_they_are(tmp_path: Path) -> None:
    stock = catalog.load(Path(__file__).parents[3] / "patches")["vllm/cpu-dist-info"]
    patch = authoring.in_project(stock, tmp_path / "patches")
    authoring.add_variant(patch, "0.33.0", DIFF)
    before, after = (one.folder / "patch.yaml" for one in (stock, patch))
    assert ranges(after) == [*ranges(before), '">=0.33,<0.34"']


def test_a_new_diff_has_a_name_that_no_other_has(tmp_path: Path) -> None:
    make(tmp_path)
    (patch,) = catalog.load(tmp_path / "patches").values()
    for name in ("0.22.diff", "0.22.1.diff", "0.22.1-2.diff", "0.22.1-3.diff"):
        assert authoring._free_name(patch, "0.22.1", Version("0.22")) == patch.folder / name
        taken = replace(patch.variants[0], diff=patch.folder / name)
        patch = replace(patch, variants=(*patch.variants, taken))


def written(folder: Path, text: str, words: Words) -> dict[str, object]:
    authoring.write_draft(folder / "vllm/new", "0.22.1", text, words)
    found: dict[str, object] = yaml.safe_load((folder / "vllm/new/patch.yaml").read_text())
    assert found.pop("variants") == [{"versions": ">=0.22,<0.23", "diff": "0.22.diff"}]
    assert (folder / "vllm/new/0.22.diff").read_text() == text
    return found


PYTHON = "--- a/x.py\t2026\n+++ b/x.py\n@@ -1 +1 @@\n-a\n+b\n"


def test_a_draft_has_all_that_is_known_and_asks_for_the_rest(tmp_path: Path) -> None:
    assert written(tmp_path, PYTHON, Words()) == {
        "draft": True,
        "summary": "TODO: what it changes, in one line",
        "purpose": "TODO: why it is needed",
        "symptom": "TODO: what a user sees without it",
        "evidence": [],
        "remove_when": "TODO: what makes it unnecessary",
        "stage": "installed",
        "findings": "Not measured yet.",
        "proof": {"run": "proof.py", "kind": "behaviour"},
    }
    assert (tmp_path / "vllm/new/proof.py").read_text() == authoring.DRAFT_PROOF
    (tmp_path / "vllm/new/proof.py").write_text("# the author's\n")
    found = written(tmp_path, PYTHON, Words(summary="s", notes="n", origin="o"))
    assert (found["summary"], found["findings"]) == ("s", "n")
    assert (tmp_path / "vllm/new/proof.py").read_text() == "# the author's\n"


def test_an_unproven_patch_needs_nothing_more(tmp_path: Path) -> None:
    words = Words(
        origin="o", unproven=True, address="https://x/1.diff", sha256="1e5", imported=b"i"
    )
    assert written(tmp_path, PYTHON, words) == {
        "unproven": True,
        "summary": "changes of https://x/1.diff",
        "purpose": "Imported from https://x/1.diff.",
        "symptom": "Not shown by any proof.",
        "evidence": [],
        "remove_when": "A release has it, or nobody needs it.",
        "stage": "installed",
        "findings": "Not measured yet.",
        "imported": {"address": "https://x/1.diff", "sha256": "1e5"},
    }
    assert (tmp_path / "vllm/new" / IMPORTED).read_bytes() == b"i"
    assert not (tmp_path / "vllm/new/proof.py").exists()
    other = written(tmp_path / "other", PYTHON, replace(words, address=""))
    assert (other["summary"], "imported" in other) == ("changes of o", False)


@pytest.mark.parametrize(
    ("old", "new", "stage"),
    [
        ("a/x.py", "b/x.py", "installed"),
        ("a/x.pyi", "/dev/null", "installed"),
        ("a/x.cu", "b/x.cu", "source"),
        ("a/x.cu", "/dev/null", "source"),
        ("a/x.py", "b/x.cu", "source"),
        ("/dev/null", "b/cmake/x.txt", "source"),
        ("a/flashinfer/data/x.cu", "b/flashinfer/data/x.cu", "installed"),
    ],
)
def test_what_is_compiled_is_patched_in_the_sources(
    tmp_path: Path, old: str, new: str, stage: str
) -> None:
    text = f"--- {old}\n+++ {new}\n@@ -1 +1 @@\n-a\n+b\n"
    assert written(tmp_path, text, Words())["stage"] == stage


@pytest.mark.parametrize("is_proven", [True, False])
def test_a_stock_patch_is_copied_with_all_its_files_and_the_project_s_own_is_not(
    tmp_path: Path, is_proven: bool
) -> None:
    folder = make(tmp_path / "stock", **({} if is_proven else {"text": UNPROVEN}))
    (folder / "__pycache__").mkdir()
    (patch,) = catalog.load(tmp_path / "stock/patches").values()
    patches = tmp_path / "own/patches"
    own = authoring.in_project(patch, patches)
    assert (own.folder, own.shown) == (patches / "vllm/one", "patches/vllm/one/patch.yaml")
    assert own.origin is Origin.REPLACES_STOCK
    assert [one.diff for one in own.variants] == [own.folder / "a.diff", own.folder / "b.diff"]
    assert (own.proof.script if own.proof else None) == (
        own.folder / "proof.py" if is_proven else None
    )
    assert {path.name for path in own.folder.iterdir()} == {
        path.name for path in folder.iterdir()
    } - {"__pycache__"}
    assert authoring.in_project(own, patches) is own


def test_a_copy_that_was_killed_is_no_patch_and_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "stock")
    (patch,) = catalog.load(tmp_path / "stock/patches").values()
    patches = tmp_path / "own/patches"

    def killed(source: Path, target: Path, *, ignore: Any, **_: Any) -> None:
        target.mkdir(parents=True)
        names = [path.name for path in source.iterdir()]
        for name in {*names} - ignore(str(source), names):
            (target / name).write_text("half of it")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "copytree", killed)
        with pytest.raises(KeyboardInterrupt):
            authoring.in_project(patch, patches)
    assert catalog.load(patches) == {}
    own = authoring.in_project(patch, patches)
    assert [one.diff.read_text() for one in own.variants] == [
        one.diff.read_text() for one in patch.variants
    ]
    assert [*catalog.load(patches)] == [patch.name]
