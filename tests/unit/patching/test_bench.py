"""The bench of patches: compilers, and what they made, are only for proofs that run them."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from support.machine import settings
from support.patches import PATCH, make
from support.project import project_lock, project_matrix, stock_patches

from imagefactory.inbuild import overlay, proofkit
from imagefactory.patching import catalog, cuda_home, patching, status
from imagefactory.patching.compiled import FOLDER
from imagefactory.patching.measure import Bench
from imagefactory.patching.sources import SourceTree

PLAIN, COMPILING = "vllm/mtp-exclusion", "vllm/e2m1-software"


@pytest.mark.parametrize(
    ("names", "locked", "declared", "prepared"),
    [
        ([PLAIN, COMPILING], True, True, True),
        ([PLAIN], True, True, False),
        ([COMPILING], False, True, False),
        ([COMPILING], True, False, False),
    ],
)
def test_a_toolchain_is_prepared_only_for_a_proof_that_compiles(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    names: list[str],
    locked: bool,
    declared: bool,
    prepared: bool,
) -> None:
    calls: list[str] = []

    def prepare(*_: object) -> Path:
        calls.append("prepared")
        return tmp_path / "cuda" / "toolchain" / "nvidia"

    monkeypatch.setattr(cuda_home, "for_this_machine", lambda _, name: name)
    monkeypatch.setattr(cuda_home, "prepare", prepare)
    patches = [stock_patches()[name] for name in names]
    assert any(one.proof and one.proof.kind == "nvcc" for one in patches) == (COMPILING in names)
    toolchains = project_matrix().toolchains if declared else ()
    lock = project_lock() if locked else None
    patching.bench(patches, toolchains, lock, settings(tmp_path))
    assert calls == ["prepared"] * prepared


#: As nvcc names what it leaves if it is killed.
LEAVES = "import pathlib, tempfile; pathlib.Path(tempfile.gettempdir(), 'probe.lgenfe.bc').touch()"


@pytest.mark.programs
def test_what_a_killed_compiler_of_a_proof_leaves_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (make(tmp_path) / "proof.py").write_text(LEAVES)
    (patch,) = catalog.load(tmp_path / "patches").values()
    root, temporary = tmp_path / "tree", tmp_path / "tmp"
    for folder in (root, temporary):
        folder.mkdir()
    (root / "x.py").write_text("one\ntwo\n")
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setenv("TMPDIR", str(temporary))
    tree = SourceTree(project="vllm", version="0.22.1", root=root, sha256="aa")
    bench = Bench(settings(tmp_path))
    for measure in (bench.series, bench.each):
        assert len(measure(tree, [status.step_for(patch, tree)])) == 1
        assert list(temporary.iterdir()) == []


def test_only_proofs_that_compile_get_what_was_compiled_in_this_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[dict[str, str]] = []

    def prove(_script: Path, _tree: Path, env: dict[str, str]) -> tuple[int, str]:
        given.append(env)
        return 0, "right"

    monkeypatch.setattr(overlay, "prove", prove)
    monkeypatch.setattr(proofkit, "missing", lambda *_: "")
    tree = SourceTree(project="vllm", version="0.22.1", root=tmp_path, sha256="aa")
    stores: list[str] = []
    for needs in ("[]", "[g++]", "[nvcc]", "[numpy, cmake]"):
        text = PATCH.replace("kind: static", f"kind: static\n  needs: {needs}")
        make(tmp_path / needs, text=text)
        (patch,) = catalog.load(tmp_path / needs / "patches").values()
        step, bench = status.step_for(patch, tree), Bench(settings(tmp_path))
        assert patch.proof
        for _ in range(2):
            bench._prover([step], tmp_path)(patch.proof.script, tmp_path)
            stores.append(given[-1].get(FOLDER, ""))
            if stores[-1]:
                assert Path(stores[-1]).is_dir()
        bench._prover([step], None)(patch.proof.script, tmp_path)
        assert FOLDER not in given[-1]  # a build proves it, too, and remembers nothing
        del bench
    assert [bool(store) for store in stores] == [False] * 2 + [True] * 4 + [False] * 2
    assert stores[2] == stores[3] != stores[4] == stores[5]
    assert not any(Path(store).exists() for store in stores if store)
