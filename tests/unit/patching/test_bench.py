"""The bench of patches: compilers are installed only if a proof runs them."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from support.machine import settings
from support.patches import make
from support.project import project_lock, project_matrix, stock_patches

from imagefactory.patching import catalog, cuda_home, patching, status
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
