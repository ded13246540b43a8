"""What stops a port, a merge or a measurement before anything is written; and the tracer."""

from __future__ import annotations

import atexit
import os
import runpy
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet
from support.machine import settings
from support.patches import DIFF, make
from unidiff.patch import PatchSet

from imagefactory.errors import CheckFailedError, InputError
from imagefactory.inbuild import overlay, proofkit
from imagefactory.patching import (
    authoring,
    catalog,
    conflicts,
    importing,
    incoming,
    measure,
    merge,
    partial,
    port,
    rebase,
    sources,
    status,
    tracing,
)
from imagefactory.patching.measure import Bench, Measured
from imagefactory.patching.merge import MergedFile
from imagefactory.patching.patch import State
from imagefactory.patching.sources import SourceTree
from imagefactory.system import shell


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("vllm/one", "patch-exists"),
        ("vllm", "patch-name"),
        ("vllm/", "patch-name"),
        ("vllm/One", "patch-name"),
        ("vllm/-one", "patch-name"),
        ("nobody/one", "patch-name"),
        ("vllm/two", ""),
    ],
)
def test_a_new_patch_has_a_valid_name_that_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: str
) -> None:
    make(tmp_path)
    monkeypatch.setattr(port, "target", lambda _, version, __: version)
    monkeypatch.setattr(sources, "fetch", lambda project, version, _: f"{project} {version}")
    patches, own = tmp_path / "patches", settings(tmp_path)
    if not code:
        assert port.source_for(name, "0.22.1", patches, own) == "vllm 0.22.1"  # type: ignore[comparison-overlap]
        return
    with pytest.raises(InputError) as caught:
        port.source_for(name, "0.22.1", patches, own)
    assert [one.code for one in caught.value.problems] == [code]


@pytest.mark.parametrize(("code", "fails"), [(0, False), (127, False), (128, True), (-9, True)])
def test_a_merge_that_git_could_not_make_is_an_error_and_not_128_conflicts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, fails: bool
) -> None:
    monkeypatch.setattr(shell, "run", lambda *_, **__: SimpleNamespace(code=code, err="fatal"))
    given = b"ours", b"base", tmp_path / "theirs", tmp_path, ("a", "b")
    if not fails:
        assert merge._merge_file(*given) == (b"ours", code)
        return
    with pytest.raises(CheckFailedError) as caught:
        merge._merge_file(*given)
    assert caught.value.problems[0].code == "port-merge"


def test_of_what_is_known_about_a_series_only_patches_that_were_applied_are_applied_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path)
    (patch,) = catalog.load(tmp_path / "patches").values()
    tree = SourceTree(project="vllm", version="0.22.1", root=tmp_path, sha256="aa")
    step = status.step_for(patch, tree)
    applied: list[Path] = []
    monkeypatch.setattr(overlay, "git_apply", lambda _, diff: applied.append(diff))
    monkeypatch.setattr(measure, "copy_of", nullcontext)
    monkeypatch.setattr(Bench, "_measure", lambda *_: [])
    for state in State:
        row = Measured(
            project="vllm",
            patch=patch.name,
            version="0.22.1",
            state=state,
            reason="",
            evidence="",
        )
        Bench(settings(tmp_path))._measured(tree, [step], [row])
        assert bool(applied) is state.applied
        applied.clear()
    assert {state.applied for state in State} == {True, False}


@pytest.mark.parametrize("more", [(), ("in", "again")])
def test_a_traced_proof_gets_its_arguments_and_a_record_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    ran: list[object] = []
    ended: list[tuple[object, ...]] = []
    proof, out = str(tmp_path / "patch/proof.py"), tmp_path / "0.trace"
    monkeypatch.setattr(os, "environ", {tracing.PROOF: proof, tracing.TRACE: str(out)})
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", ["tracing's"])
    monkeypatch.setattr(tracing, "watch", ran.append)
    monkeypatch.setattr(atexit, "register", lambda *given: ended.append(given))
    monkeypatch.setattr(runpy, "run_path", lambda path, run_name: ran.extend([path, run_name]))
    tracing.main(str(tmp_path), *more)
    recorder = ran[0]
    own = tmp_path / f"0.{os.getpid()}.trace" if more else out
    assert ran == [recorder, proof, "__main__"]
    assert sys.argv == [proof, str(tmp_path), *more]
    assert sys.path == [str(tmp_path / "patch")]
    assert ended == [(tracing.write, recorder, own, own.with_suffix(".headers"))]
    assert os.environ[tracing.GCC_REPORT] == str(own.with_suffix(".headers"))
    assert os.environ[tracing.TRACER] == tracing.__file__


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("", False),
        ("{", False),
        ("3", False),
        ("[5]", False),
        ("[{}]", False),
        ('[{"state": "new"}]', False),
        ('[{"state": "needed"}]', False),
        ("[]", True),
        (None, False),
    ],
)
def test_a_damaged_measurement_counts_as_none(
    tmp_path: Path, text: str | None, known: bool
) -> None:
    if text is not None:
        (tmp_path / "0.json").write_text(text)
    assert measure._read(tmp_path / "0.json") == ([] if known else None)


@pytest.mark.parametrize(
    ("changed", "text", "refused"),
    [
        (["a.py"], "a diff", False),
        (["a.py", "b.so"], "a diff", False),
        (["a.py", "b.py"], "a diff", True),
        (["b.so"], "", True),
    ],
)
def test_a_tree_is_an_edited_copy_of_the_release_if_few_files_of_text_differ(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changed: list[str],
    text: str,
    refused: bool,
) -> None:
    source = SourceTree(project="vllm", version="0.22.1", root=tmp_path, sha256="aa")
    for name in changed:
        (tmp_path / name).touch()
    written: list[object] = []
    monkeypatch.setattr(port, "MAX_FILES", 1)
    monkeypatch.setattr(port, "source_for", lambda *_: source)
    monkeypatch.setattr(port, "changed_files", lambda *_: [*changed, "gone.py"])
    monkeypatch.setattr(port, "diff_of", lambda _, __, names: text * (names != ["b.so"]))
    monkeypatch.setattr(authoring, "write_draft", lambda *given: written.append(given[:3]))
    given = "vllm/new", "0.22.1", tmp_path, tmp_path / "patches", settings(tmp_path)
    if refused:
        with pytest.raises(InputError) as caught:
            port.from_tree(*given)
        assert (caught.value.problems[0].code, written) == ("patch-tree", [])
        return
    assert port.from_tree(*given) == text
    assert written == [(tmp_path / "patches/vllm/new", "0.22.1", text)]


def test_a_diff_that_does_not_apply_to_its_own_release_is_not_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x.diff").write_text(DIFF)
    failed = SimpleNamespace(returncode=1, stderr="error: x.py\nerror: no such file\n")
    monkeypatch.setattr(overlay, "git_apply", lambda *_: failed)
    monkeypatch.setattr(merge, "copy_files", lambda *_: None)
    with pytest.raises(CheckFailedError) as caught:
        merge.merge(tmp_path / "x.diff", tmp_path, tmp_path, ("vllm 1", "vllm 2"))
    (problem,) = caught.value.problems
    assert problem.code == "port-base"
    assert problem.what == "x.diff does not apply to vllm 1: error: no such file"


def test_text_that_is_not_utf_8_is_read_all_the_same(tmp_path: Path) -> None:
    """Sources of old have names of people in Latin-1, and scripts and mails anything."""
    lines = b"# J\xfcrgen\none\ntwo\nthree\n"
    old, new = tmp_path / "old", tmp_path / "new"
    for path in (old / "pkg/x.py", new / "sub/x.py"):
        path.parent.mkdir(parents=True)
        path.write_bytes(lines)
    diff = DIFF.replace("x.py", "pkg/x.py")
    assert merge.locate("pkg/x.py", lines.decode("latin-1"), new) == "sub/x.py"
    assert conflicts.moved(diff, new) == {"pkg/x.py": "sub/x.py"}
    wrong = diff.replace("-two", "-too")
    assert "# J\ufffdrgen" in conflicts.explain(wrong, old)
    tree = SourceTree(project="vllm", version="1", root=old, sha256="aa")
    assert (partial.fitting([diff], tree), partial.fitting([wrong], tree)) == (1, 0)
    (old / "pkg/x.py").write_bytes(lines + b"<<<<<<< ours\n")
    assert list(merge.leftover_markers(old, ["pkg/x.py"])) == [f"{old / 'pkg/x.py'}:5"]
    assert incoming.subject(b"Subject: [PATCH] J\xfcrgen's\n") == "J\ufffdrgen's"
    script = tmp_path / "run.sh"
    script.write_bytes(b"# \xfc\ncurl https://github.com/o/r/pull/7.diff\n")
    assert importing._addresses_in(script) == ["https://github.com/o/r/pull/7.diff"]
    text = b"<<<<<<< a\n\xfc\n||||||| b\n=======\n>>>>>>> c\n"
    file = MergedFile(old="x.cu", new="x.cu", text=text, conflicts=1, base=lines, patched=lines)
    assert "    \ufffd" in list(port.conflict_lines([file]))
    assert rebase._fault([replace(file, text=lines)], replace(tree, root=new)) == ""


def test_a_file_that_is_not_utf_8_is_merged_where_it_moved_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = b"# J\xfcrgen\none\ntwo\nthree\n"
    for path in ("old/pkg/x.py", "patched/pkg/x.py", "new/sub/x.py"):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_bytes(lines)
    (file,) = PatchSet(DIFF.replace("x.py", "pkg/x.py"))
    monkeypatch.setattr(merge, "_merge_file", lambda ours, base, *_: (ours + base, 0))
    old, patched, new = (tmp_path / name for name in ("old", "patched", "new"))
    found = merge._merged(file, old, patched, new, tmp_path, ("1", "2"))
    assert (found.new, found.text, found.base) == ("sub/x.py", lines * 2, lines)


@pytest.mark.parametrize("traced", [False, True])
def test_a_proof_gets_the_toolchain_and_runs_only_with_the_tools_that_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, traced: bool
) -> None:
    make(tmp_path)
    (patch,) = catalog.load(tmp_path / "patches").values()
    assert patch.proof
    step = status.step_for(patch, SourceTree(project="vllm", version="1", root=tmp_path, sha256=""))
    ran: list[tuple[Path, Mapping[str, str]]] = []

    def prove(script: Path, _: Path, env: Mapping[str, str]) -> tuple[int, str]:
        ran.append((script, env))
        return 0, "seen"

    def missing(_: object, env: Mapping[str, str]) -> str:
        return "" if env.get(proofkit.CUDA) == str(home) and "OWN" in env else "no nvcc"

    home, traces = tmp_path / "toolchains/t-1/nvidia/cu13", tmp_path / "traces"
    traces.mkdir()
    monkeypatch.setenv("OWN", "1")
    monkeypatch.setattr(overlay, "prove", prove)
    monkeypatch.setattr(proofkit, "missing", missing)
    given = [step], traces if traced else None
    without = Bench(settings(tmp_path))._prover(*given)
    said = overlay.INCONCLUSIVE, "inconclusive: no nvcc"
    assert (without(patch.proof.script, tmp_path), ran) == (said, [])
    prover = Bench(settings(tmp_path), cuda=home)._prover(*given)
    assert prover(patch.proof.script, tmp_path) == (0, "seen")
    ((script, env),) = ran
    assert script == (Path(tracing.__file__) if traced else patch.proof.script)
    own = {tracing.PROOF: str(patch.proof.script), tracing.TRACE: str(traces / "0.trace")}
    temporary = {"TMPDIR": env["TMPDIR"]}
    assert env == {proofkit.CUDA: str(home), **temporary, **(own if traced else {})}


def test_of_several_faulty_merges_the_fault_of_the_first_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path)
    (patch,) = catalog.load(tmp_path / "patches").values()
    tree = SourceTree(project="vllm", version="1", root=tmp_path, sha256="")
    row = {"project": "vllm", "patch": patch.name, "version": "1", "reason": "", "evidence": ""}
    seen, said = Measured(state=State.CONFLICT, **row), ["first", "second"]
    monkeypatch.setattr(rebase, "_candidates", lambda files: [(files, "a"), (files, "b")])
    monkeypatch.setattr(rebase, "text_of", lambda *_: "a diff")
    monkeypatch.setattr(rebase, "_fault", lambda *_: said.pop(0))
    found = rebase._merged(patch, (), tree, Bench(settings(tmp_path)), seen)
    assert (found.outcome, found.fault, said) == (rebase.Outcome.CONFLICT, "first", [])


@pytest.mark.parametrize(
    ("versions", "base"),
    [
        ({"0.1": ">=0.16,<0.18"}, "0.17.0"),
        ({"0.1": ">=0.16,<0.18", "0.2": ">=0.18,<0.19"}, "0.18.0"),
        ({"0.2": ">=0.22"}, "0.22.0"),
        ({"0.1": ">=0.16,<0.17", "0.2": ">=0.22"}, "0.16.0"),
        ({"0.1": "==0.20.0"}, None),
        ({}, None),
    ],
)
def test_a_port_starts_from_the_nearest_release_before_else_after(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, versions: Mapping[str, str], base: str | None
) -> None:
    known = ["0.16.0", "0.17.0", "0.18.0", "0.20.0", "0.22.0", "0.23.0"]
    monkeypatch.setattr(
        sources, "releases", lambda _, wanted, __: [*wanted.filter(known)] if wanted else known
    )
    monkeypatch.setattr(sources, "fetch", lambda project, version, _: (project, version))
    variants = [
        SimpleNamespace(name=name, versions=SpecifierSet(text)) for name, text in versions.items()
    ]
    patch: Any = SimpleNamespace(project="vllm", variants=variants)
    found: Any = port._origin(patch, "0.20.0", settings(tmp_path))
    assert (found[1] if found else None) == (("vllm", base) if base else None)
    if found:
        assert found[0].versions.contains(base)


@pytest.mark.parametrize(
    ("asked", "release"),
    [
        ("latest", "0.22.1"),
        ("0.22.1", "0.22.1"),
        ("0.22.1.0", "0.22.1"),
        ("0.23.0rc1", "0.23.0rc1"),
        ("0.9", None),
        ("newest", None),
    ],
)
def test_the_release_that_a_port_goes_to_is_known_and_the_latest_is_no_candidate(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, asked: str, release: str | None
) -> None:
    monkeypatch.setattr(sources, "releases", lambda *_: ["0.22.0", "0.22.1", "0.23.0rc1"])
    if release:
        assert port.target("vllm", asked, settings(tmp_path)) == release
        return
    with pytest.raises(InputError, match=f"there is no vllm {asked}"):
        port.target("vllm", asked, settings(tmp_path))


def test_only_what_needs_no_hands_is_a_success() -> None:
    good = {"unchanged", "merged", "obsolete", "already upstream"}
    assert {str(one) for one in rebase.Outcome if one.succeeded} == good


@pytest.mark.parametrize(
    ("texts", "count"),
    [
        ((), None),
        (("",), 0),
        (('["a", "read"]\n', '["b", "read"]\n'), 2),
        (('["a", "read"]\nnull\n',), None),
    ],
)
def test_what_proofs_read_is_known_only_if_one_ran_and_all_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: tuple[str, ...], count: int | None
) -> None:
    monkeypatch.setattr(measure, "as_read", lambda *row: row)
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.trace").write_text(text)
    (tmp_path / "other").write_text("null\n")
    found = measure._traced(tmp_path)
    assert (None if found is None else len(found)) == count


@pytest.mark.parametrize(
    ("version", "ref", "diff"),
    [
        ("0.34.0", None, "b"),
        ("0.34.0rc1", None, None),
        ("0.34.0rc1.dev5", object(), "b"),
        ("0.33.1rc1", object(), "a"),
        ("0.35.0rc1", object(), None),
    ],
)
def test_only_for_a_ref_the_release_that_it_leads_to_counts(
    version: str, ref: object, diff: str | None
) -> None:
    ranges = {"a": SpecifierSet("<0.34"), "b": SpecifierSet(">=0.34,<0.35")}

    def variant(wanted: str) -> str | None:
        return next((name for name, one in ranges.items() if one.contains(wanted)), None)

    patch: Any = SimpleNamespace(project="vllm", exemption=lambda _: None, variant=variant)
    cell: Any = SimpleNamespace(axes={"vllm": version}, ref=ref)
    found: Any = catalog._step(patch, cell)
    assert (found.version, found.variant) == (version, diff)
