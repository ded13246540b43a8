"""Porting a patch, a step at a time: which release, from where, and what is written."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.machine import settings
from support.patches import DIFF, PATCH, UNPROVEN, make

from imagefactory.errors import InputError, fail
from imagefactory.patching import authoring, catalog, conflicts, port, rebase, worktree
from imagefactory.patching.authoring import Words
from imagefactory.patching.measure import Bench, Measured
from imagefactory.patching.merge import MergedFile
from imagefactory.patching.patch import Patch, State
from imagefactory.patching.rebase import Outcome, Rebased
from imagefactory.patching.resolve_conflicts import Side
from imagefactory.patching.sources import SourceTree

NOTHING: Any = None


def patch_of(folder: Path, text: str = PATCH) -> Patch:
    make(folder, text=text)
    (found,) = catalog.load(folder / "patches").values()
    return found


def tree_of(root: Path, version: str = "0.22.1") -> SourceTree:
    return SourceTree(project="vllm", version=version, root=root, sha256="ab" * 32)


def seen(state: State, reason: str = "why") -> Measured:
    return Measured(
        project="vllm", patch="vllm/one", version="1", state=state, reason=reason, evidence=""
    )


@pytest.mark.parametrize(
    ("known", "found"),
    [
        ({"vllm", "flashinfer"}, {"vllm": "1", "flashinfer": "1"}),
        ({"vllm"}, {"vllm": "1"}),
        (set(), None),
    ],
)
def test_a_version_is_that_of_the_projects_that_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: set[str], found: dict[str, str] | None
) -> None:
    def target(project: str, asked: str, _: object) -> str:
        if project not in known:
            raise fail(InputError, "port-target", f"no {project} {asked}")
        return asked

    monkeypatch.setattr(port, "target", target)
    given = ["vllm", "flashinfer"], "1", settings(tmp_path)
    if found is not None:
        assert port.targets(*given) == found
        return
    with pytest.raises(InputError) as caught:
        port.targets(*given)
    said = ["no vllm 1", "no flashinfer 1"]
    assert [one.what for one in caught.value.problems] == said


MERGED = (
    MergedFile(old="a.py", new="b.py", text=b"x", conflicts=0),
    MergedFile(old="c.py", new="c.py", text=b"y", conflicts=2),
)


@pytest.mark.parametrize(
    ("outcome", "state", "text", "fault", "yaml", "did", "done"),
    [
        ("obsolete", "obsolete", None, "", PATCH, "why", True),
        ("already upstream", "unknown", None, "", PATCH, "nothing was written", True),
        ("already upstream", "broken", None, "", UNPROVEN, "nothing was written", True),
        ("already upstream", "broken", None, "", PATCH, "but its proof still fails: why", False),
        ("merged", "needed", "d", "", PATCH, "added n.diff to patches/vllm/one/patch.yaml", True),
        ("merged", "broken", "d", "", UNPROVEN, "not proven: why", True),
        ("unknown", "unknown", "d", "", PATCH, "why", False),
        ("merged, unproven", "unknown", "d", "", PATCH, "is inconclusive: why", False),
        ("conflict", "conflict", None, "it is cut", PATCH, "was refused: it is cut", False),
        ("conflict", "conflict", None, "", PATCH, "conflicts in c.py (2)", False),
        ("broken", "broken", None, "", PATCH, "merged, but its proof fails: why", False),
    ],
)
def test_what_rebasing_led_to_is_written_or_left_in_a_work_tree(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    outcome: str,
    state: str,
    text: str | None,
    fault: str,
    yaml: str,
    did: str,
    done: bool,
) -> None:
    patch, begun, added = patch_of(tmp_path, yaml), list[object](), list[object]()

    def begin(*given: object, **more: object) -> object:
        begun.append((*given[1:], more["kind"], more["files"]))
        return SimpleNamespace(tree="the tree")

    def add_variant(*given: object) -> Path:
        added.append(given)
        return Path("n.diff")

    monkeypatch.setattr(worktree, "begin", begin)
    monkeypatch.setattr(authoring, "add_variant", add_variant)
    files = MERGED[:1] if outcome == "broken" else MERGED
    made = Rebased(
        outcome=Outcome(outcome),
        text=text,
        files=files,
        seen=seen(State(state)),
        note="review it" if text else "",
        fault=fault,
    )
    new = tree_of(tmp_path)
    said, is_done = port._write(patch, new, made, tmp_path / "patches", settings(tmp_path))
    assert did in said
    assert is_done is done
    is_added = done and text is not None
    assert added == ([(patch, "0.22.1", text, {"a.py": "b.py"})] if is_added else [])
    assert ("; moved: a.py -> b.py; review it" in said) is is_added
    left = not done and outcome not in ("already upstream", "unknown")
    assert begun == ([("vllm/one", new, "port", files)] if left else [])
    end = "; moved: a.py -> b.py; edit the tree, then: imagefactory patch continue vllm/one"
    assert said.endswith(end) is left


@pytest.mark.parametrize(
    ("unproven", "outcome", "did"),
    [
        (False, "draft", "wrote the draft vllm/x; next: write its proof"),
        (True, "unproven", "wrote the unproven patch vllm/x"),
    ],
)
def test_a_finished_work_tree_is_a_new_patch(
    tmp_path: Path, unproven: bool, outcome: str, did: str
) -> None:
    words = Words(unproven=unproven)
    work = worktree.WorkTree(folder=tmp_path, patch="vllm/x", version="1", kind="new", words=words)
    found = port._written(work)
    assert (found.patch, found.version, found.outcome) == ("vllm/x", "1", outcome)
    assert (found.base, found.done, found.detail) == ("", True, "")
    assert found.did.startswith(did)


def test_a_variant_is_added_beside_the_others_and_another_diff_gives_way(tmp_path: Path) -> None:
    patch = patch_of(tmp_path)
    (patch.folder / "b.diff").write_text(DIFF.replace("zwei", "deux"))
    other = DIFF.replace("zwei", "dos")
    assert authoring.add_variant(patch, "0.24.1", other, {"a": "b"}).name == "0.24.diff"
    (patch,) = catalog.load(tmp_path / "patches").values()
    rows = [(str(one.versions), one.diff.name, dict(one.moved)) for one in patch.variants]
    assert rows == [
        ("<0.23,>=0.22", "a.diff", {}),
        ("<0.25,>=0.24", "0.24.diff", {"a": "b"}),
        ("<0.34,>=0.33", "b.diff", {}),
    ]
    assert (patch.folder / "0.24.diff").read_text() == other
    assert authoring.add_variant(patch, "0.23.0", DIFF).name == "a.diff"
    (patch,) = catalog.load(tmp_path / "patches").values()
    assert [str(one.versions) for one in patch.variants][:2] == ["<0.24,>=0.22", "<0.25,>=0.24"]
    assert patch.variants[1].moved == {"a": "b"}
    authoring.add_variant(patch, "0.33.0", DIFF.replace("zwei", "tre"))
    (patch,) = catalog.load(tmp_path / "patches").values()
    assert [one.diff.name for one in patch.variants] == ["a.diff", "0.24.diff", "0.33.diff"]
    assert not (patch.folder / "b.diff").exists()


def test_a_new_file_and_one_that_is_there_have_not_moved(tmp_path: Path) -> None:
    new = "--- /dev/null\n+++ b/new.py\n@@ -0,0 +1,2 @@\n+one\n+two\n"
    there = DIFF.replace("x.py", "there.py")
    (tmp_path / "sub").mkdir()
    for name in ("there.py", "sub/new.py", "sub/x.py", "sub/there.py"):
        (tmp_path / name).write_text("one\ntwo\n")
    assert conflicts.moved(new + there + DIFF, tmp_path) == {"x.py": "sub/x.py"}
    (tmp_path / "x.py").touch()
    assert conflicts.moved(new + there + DIFF, tmp_path) == {}


@pytest.mark.parametrize(
    ("conflicted", "resolvable", "sides"),
    [(0, True, [""]), (1, True, [*Side]), (2, True, [*Side]), (1, False, [])],
)
def test_conflicts_are_resolved_in_every_file_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch, conflicted: int, resolvable: bool, sides: list[str]
) -> None:
    files = tuple(
        MergedFile(old=name, new=name, text=b"t", conflicts=int(number < conflicted))
        for number, name in enumerate("abc")
    )
    resolve = lambda text, side: text + str(side).encode() if resolvable else None  # noqa: E731
    monkeypatch.setattr(rebase, "resolve", resolve)
    found = list(rebase._candidates(files))
    names = ", ".join("abc"[:conflicted])
    notes = [
        f"conflict resolved (review it): lines added {side} upstream's change in {names}"
        for side in sides
        if side
    ]
    assert [note for _, note in found] == (notes or [""] * len(sides))
    for (made, _), side in zip(found, sides, strict=True):
        assert [one.conflicts for one in made] == [0, 0, 0]
        own = f"t{side}".encode()
        assert [one.text for one in made] == [own] * conflicted + [b"t"] * (3 - conflicted)
    gone = MergedFile(old="x", new="x", text=None, conflicts=1)
    assert rebase._resolved(gone, Side.AFTER) is None


@pytest.mark.parametrize(
    ("state", "applies", "outcome"),
    [
        (State.OBSOLETE, True, "obsolete"),
        (State.NEEDED, True, "unchanged"),
        (State.DECLARED, True, "unchanged"),
        (State.UNPROVEN, True, "unchanged"),
        (State.UNKNOWN, True, "unknown"),
        (State.UNKNOWN, False, "merged"),
        (State.BROKEN, True, "merged"),
        (State.CONFLICT, False, "merged"),
    ],
)
def test_a_diff_that_still_works_is_not_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: State, applies: bool, outcome: str
) -> None:
    (tmp_path / "x.diff").write_text(DIFF)
    labels: list[object] = []

    def merge(*given: object) -> tuple[MergedFile, ...]:
        labels.append(given[3])
        return MERGED

    monkeypatch.setattr(rebase, "measure", lambda *_: seen(state))
    monkeypatch.setattr(rebase, "applies", lambda *_: applies)
    monkeypatch.setattr(rebase, "merge", merge)
    done = Rebased(outcome=Outcome.MERGED, text="m", files=MERGED, seen=seen(state))
    monkeypatch.setattr(rebase, "_merged", lambda *_: done)
    bench: Bench = NOTHING
    old, new = tree_of(tmp_path, "1"), tree_of(tmp_path, "2")
    found = rebase.rebase(patch_of(tmp_path), tmp_path / "x.diff", old, new, bench)
    texts = {"obsolete": None, "merged": "m"}
    assert (found.outcome, found.text) == (outcome, texts.get(outcome, DIFF))
    assert labels == ([("vllm 1", "vllm 2")] if outcome == "merged" else [])
