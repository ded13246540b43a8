"""What stops a port, a merge or a measurement before anything is written; and the tracer."""

from __future__ import annotations

import atexit
import os
import runpy
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.machine import settings
from support.patches import make

from imagefactory.errors import CheckFailedError, InputError
from imagefactory.inbuild import overlay
from imagefactory.patching import catalog, measure, merge, port, sources, status, tracing
from imagefactory.patching.measure import Bench, Measured
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
