"""The bench of patches: compilers are installed only if a proof runs them."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.machine import settings
from support.project import project_lock, project_matrix, stock_patches

from imagefactory.patching import cuda_home, patching

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
