"""Porting patches: three-way merge, accepted by the proof, finished by hand if necessary."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.releases import BASE, DIFF, ENTRY, PROOF, RELEASES, write_patch

from imagefactory.errors import InputError
from imagefactory.patching import (
    catalog,
    merge,
    port,
    rebase,
    sources,
    status,
    worktree,
)
from imagefactory.patching.measure import Bench
from imagefactory.patching.patch import Origin, Patch, State
from imagefactory.patching.port import Ported
from imagefactory.settings import Settings

pytestmark = pytest.mark.programs


@pytest.fixture
def patch(tmp_path: Path) -> Patch:
    folder = write_patch(tmp_path)
    return again(folder)


def again(folder: Path) -> Patch:
    return catalog.load(folder.parents[1])["vllm/one"]


def ported(patch: Patch, version: str, using: Settings) -> Ported:
    return port.port(patch, version, patch.folder.parents[1], Bench(using), using)


def ranges(patch: Patch) -> dict[str, str]:
    return {str(variant.versions): variant.diff.name for variant in again(patch.folder).variants}


def test_a_diff_that_still_works_gets_a_wider_range_and_nothing_else_in_patch_yaml_changes(
    patch: Patch, using: Settings
) -> None:
    assert ported(patch, "0.21.0", using).outcome == "unchanged"
    assert ranges(patch) == {"<0.22,>=0.20": "0.20.diff"}
    wider = ENTRY.replace('">=0.20,<0.21"', '">=0.20,<0.22"')
    assert (patch.folder / "patch.yaml").read_text() == wider


def test_a_patch_that_already_works_is_not_changed(patch: Patch, using: Settings) -> None:
    done = ported(patch, "0.20.0", using)
    assert (done.outcome, done.done) == ("already works", True)
    assert (patch.folder / "patch.yaml").read_text() == ENTRY


def test_a_merged_variant_is_written_without_offsets(patch: Patch, using: Settings) -> None:
    done = ported(patch, "0.22.0", using)
    assert (done.outcome, done.base, done.done) == ("merged", "0.20.0", True)
    assert ranges(patch) == {"<0.21,>=0.20": "0.20.diff", "<0.23,>=0.22": "0.22.diff"}
    assert "@@ -2,7 +2,7 @@" in (patch.folder / "0.22.diff").read_text()
    assert ported(again(patch.folder), "0.22.0", using).outcome == "already works"


def test_a_file_that_moved_is_followed(patch: Patch, using: Settings) -> None:
    done = ported(patch, "0.23.0", using)
    assert done.outcome == "merged"
    assert "moved: pkg/x.py -> other/folder/x.py" in done.did
    assert "+++ b/other/folder/x.py" in (patch.folder / "0.23.diff").read_text()


def test_a_patch_that_upstream_took_is_obsolete_and_not_changed(
    patch: Patch, using: Settings
) -> None:
    done = ported(patch, "0.25.0", using)
    assert (done.outcome, done.done) == ("obsolete", True)
    assert list(ranges(patch)) == ["<0.21,>=0.20"]


def test_a_variant_with_another_diff_no_longer_covers_the_release(
    patch: Patch, using: Settings
) -> None:
    (patch.folder / "patch.yaml").write_text(ENTRY.replace("<0.21", "<0.26"))
    assert ported(again(patch.folder), "0.22.0", using).outcome == "merged"
    assert ranges(patch) == {
        "<0.22,>=0.20": "0.20.diff",
        "<0.23,>=0.22": "0.22.diff",
        "<0.26,>=0.23": "0.20.diff",
    }


def test_a_conflict_is_left_in_a_work_tree_until_the_user_resolves_it(
    patch: Patch, using: Settings
) -> None:
    done = ported(patch, "0.24.0", using)
    assert (done.outcome, done.done) == ("conflict", False)
    assert "pkg/x.py (1)" in done.did
    (work,) = worktree.unfinished(using)
    text = (work.tree / "pkg/x.py").read_text()
    assert "<<<<<<< vllm 0.24.0" in text
    assert "||||||| vllm 0.20.0" in text
    with pytest.raises(InputError) as caught:
        finish(work, patch, using)
    assert [p.code for p in caught.value.problems] == ["port-markers"] * 3
    assert str(caught.value.problems[0].where).endswith("pkg/x.py:4")
    (work.tree / "pkg/x.py").write_text(
        RELEASES["0.24.0"]["pkg/x.py"].replace("see\n", "see\npatched\n")
    )
    assert finish(work, patch, using).outcome == "edited"
    assert ranges(patch)["<0.25,>=0.24"] == "0.24.diff"
    assert worktree.unfinished(using) == []
    assert (
        sources.fetch("vllm", "0.24.0", using).root.joinpath("pkg/x.py").read_text()
        == RELEASES["0.24.0"]["pkg/x.py"]
    )


def finish(work: worktree.WorkTree, patch: Patch, using: Settings) -> Ported:
    return port.finish(work, patch, using.cache.parent / "patches", Bench(using), using)


def test_a_resolved_conflict_whose_proof_fails_is_not_written(
    patch: Patch, using: Settings
) -> None:
    ported(patch, "0.24.0", using)
    (work,) = worktree.unfinished(using)
    (work.tree / "pkg/x.py").write_text(RELEASES["0.24.0"]["pkg/x.py"].replace("see\n", "saw\n"))
    with pytest.raises(InputError) as caught:
        finish(work, patch, using)
    assert caught.value.problems[0].code == "port-not-proven"
    assert list(ranges(patch)) == ["<0.21,>=0.20"]
    assert len(worktree.unfinished(using)) == 1


def test_an_existing_work_tree_is_never_overwritten(patch: Patch, using: Settings) -> None:
    ported(patch, "0.24.0", using)
    with pytest.raises(InputError) as caught:
        ported(patch, "0.24.0", using)
    assert caught.value.problems[0].code == "port-open"


def test_a_merge_whose_proof_fails_is_not_written(patch: Patch, using: Settings) -> None:
    (patch.folder / "proof.py").write_text(
        PROOF.replace('"patched" in text', '"patched" in text and "b2" not in text')
    )
    done = ported(patch, "0.22.0", using)
    assert (done.outcome, done.done) == ("broken", False)
    assert "its proof fails" in done.did
    assert list(ranges(patch)) == ["<0.21,>=0.20"]


def test_a_file_that_upstream_removed_is_a_conflict(patch: Patch, using: Settings) -> None:
    assert ported(patch, "0.26.0", using).outcome == "conflict"
    (work,) = worktree.unfinished(using)
    assert "no such file" in (work.tree / "pkg/x.py").read_text()


def test_added_lines_go_next_to_upstreams_change_if_the_proof_passes(
    patch: Patch, using: Settings
) -> None:
    added = DIFF.replace("-c\n+patched\n", " c\n+patched\n").replace("1,7 +1,7", "1,7 +1,8")
    (patch.folder / "0.20.diff").write_text(added)
    done = ported(again(patch.folder), "0.24.0", using)
    assert done.outcome == "merged"
    assert "lines added after upstream's change in pkg/x.py" in done.did
    assert " see\n+patched\n d\n" in (patch.folder / "0.24.diff").read_text()


def test_the_error_for_an_unknown_release_lists_the_newest_ones(using: Settings) -> None:
    with pytest.raises(InputError) as caught:
        port.target("vllm", "9.9", using)
    assert "0.26.0" in caught.value.problems[0].fix
    assert port.target("vllm", "latest", using) == "0.26.0"


def test_a_version_means_the_projects_that_have_it(using: Settings) -> None:
    assert port.targets(["vllm"], "0.24.0", using) == {"vllm": "0.24.0"}
    with pytest.raises(InputError) as caught:
        port.targets(["vllm"], "9.9", using)
    assert caught.value.problems[0].code == "port-target"


def test_a_version_of_one_project_leaves_the_patches_of_others_alone(
    using: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {"vllm": ["0.24.0"], "flashinfer": ["0.6.4"]}
    monkeypatch.setattr(sources, "releases", lambda project, *_: known[project])
    assert port.targets(["flashinfer", "vllm"], "0.24.0", using) == {"vllm": "0.24.0"}
    latest = {"flashinfer": "0.6.4", "vllm": "0.24.0"}
    assert port.targets(["flashinfer", "vllm"], "latest", using) == latest


def test_a_conflict_shows_the_lines_of_both_sides(patch: Patch, using: Settings) -> None:
    shown = ported(patch, "0.24.0", using).detail.splitlines()
    assert shown[0] == "pkg/x.py:4: upstream and the patch changed the same lines"
    assert [line.strip() for line in shown[1:]] == [
        "<<<<<<< vllm 0.24.0",
        "see",
        "||||||| vllm 0.20.0",
        "c",
        "=======",
        "patched",
        ">>>>>>> patch",
    ]


PATHS = """\
import pathlib, sys
path = pathlib.Path(sys.argv[1], "pkg/x.py")
print("looked" if path.is_file() else "there is no pkg/x.py")
raise SystemExit((0 if "patched" in path.read_text() else 1) if path.is_file() else 3)
"""


def test_a_proof_finds_a_file_that_upstream_moved_at_its_old_path(
    patch: Patch, using: Settings
) -> None:
    (patch.folder / "proof.py").write_text(PATHS)
    assert ported(again(patch.folder), "0.23.0", using).outcome == "merged"
    variant = again(patch.folder).variant("0.23.0")
    assert variant is not None
    assert variant.moved == {"pkg/x.py": "other/folder/x.py"}
    assert ported(again(patch.folder), "0.23.0", using).outcome == "already works"


def test_a_future_release_with_a_moved_file_names_it_and_is_no_conflict(
    patch: Patch, using: Settings
) -> None:
    (patch.folder / "proof.py").write_text(PATHS)
    (patch.folder / "patch.yaml").write_text(ENTRY.replace("<0.21", "<0.26"))
    tree = sources.fetch("vllm", "0.23.0", using)
    for one in (patch, again(patch.folder)):
        (row,) = Bench(using).each(tree, [status.step_for(one, tree)])
        assert row.state is State.UNKNOWN
        assert row.reason.startswith("upstream moved pkg/x.py, perhaps to other/folder/x.py; ")


UNSURE = "print('inconclusive: not here')\nraise SystemExit(3)\n"


@pytest.mark.parametrize("draft", [True, False])
def test_a_clean_merge_without_a_verdict_is_merged_but_unproven(
    patch: Patch, using: Settings, *, draft: bool
) -> None:
    (patch.folder / "proof.py").write_text(UNSURE)
    (patch.folder / "patch.yaml").write_text(("draft: true\n" if draft else "") + ENTRY)
    done = ported(again(patch.folder), "0.22.0", using)
    assert (done.outcome, done.done) == ("merged, unproven", draft)
    # no image can have a draft; what flavors list is not changed without a proof
    assert ("<0.23,>=0.22" in ranges(patch)) is draft
    assert len(worktree.unfinished(using)) == (not draft)


def test_a_patch_that_is_unproven_anyway_is_ported_if_it_merges_cleanly(
    patch: Patch, using: Settings
) -> None:
    text = ENTRY.partition("proof:\n")[0] + "unproven: true\n"
    (patch.folder / "patch.yaml").write_text(text)
    assert ported(again(patch.folder), "0.20.0", using).outcome == "already applies"
    assert ported(again(patch.folder), "0.21.0", using).outcome == "unchanged"
    done = ported(again(patch.folder), "0.22.0", using)
    assert (done.outcome, done.done) == ("merged, unproven", True)
    assert ranges(patch) == {"<0.22,>=0.20": "0.20.diff", "<0.23,>=0.22": "0.22.diff"}
    left = ported(again(patch.folder), "0.24.0", using)
    assert (left.outcome, left.done) == ("conflict", False)


def test_a_change_that_upstream_has_is_already_upstream_and_no_conflict(
    patch: Patch, using: Settings
) -> None:
    (patch.folder / "proof.py").write_text(UNSURE)
    same = DIFF.replace("+patched", "+fixed upstream")
    (patch.folder / "0.20.diff").write_text(same)
    done = ported(again(patch.folder), "0.25.0", using)
    assert (done.outcome, done.done) == ("already upstream", True)
    (patch.folder / "proof.py").write_text(PROOF.replace("fixed upstream", "never"))
    done = ported(again(patch.folder), "0.25.0", using)
    assert (done.outcome, done.done) == ("already upstream", False)
    assert "its proof still fails" in done.did
    assert worktree.unfinished(using) == []


def test_a_merge_that_does_not_compile_is_refused_whatever_the_proof_says(
    patch: Patch, using: Settings
) -> None:
    new = sources.fetch("vllm", "0.22.0", using)
    file = merge.MergedFile(old="pkg/x.py", new="pkg/x.py", text=b"return\n", conflicts=0)
    (new.root / "pkg/x.py").write_text("a = 1\n")
    assert "does not compile" in rebase._fault([file], new)


def test_merging_does_not_change_either_tree(patch: Patch, using: Settings) -> None:
    old, new = (sources.fetch("vllm", version, using) for version in ("0.20.0", "0.22.0"))
    merge.merge(patch.variants[0].diff, old.root, new.root, ("old", "new"))
    assert (old.root / "pkg/x.py").read_text() == BASE
    assert (new.root / "pkg/x.py").read_text() == RELEASES["0.22.0"]["pkg/x.py"]


def test_a_stock_patch_is_copied_to_the_project_before_it_is_changed(
    tmp_path: Path, patch: Patch, using: Settings
) -> None:
    own = tmp_path / "project" / "patches"
    done = port.port(patch, "0.22.0", own, Bench(using), using)
    assert done.did.startswith("added 0.22.diff to patches/vllm/one/patch.yaml")
    assert (patch.folder / "patch.yaml").read_text() == ENTRY
    found = catalog.load(own, patch.folder.parents[1])["vllm/one"]
    assert found.origin is Origin.REPLACES_STOCK
    assert [variant.diff.name for variant in found.variants] == ["0.20.diff", "0.22.diff"]
