"""The shipped patches on real vLLM sources: needed, working, and red again when they are weakened."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import ROOT, factory

from imagefactory.patching import catalog, sources
from imagefactory.patching.measure import Bench
from imagefactory.patching.model import Patch, Step
from imagefactory.settings import from_environment

pytestmark = pytest.mark.e2e

SETTINGS = from_environment(os.environ, ROOT)
MTP, ROUTING = "vllm/mtp-exclusion", "vllm/nvfp4-routing-sm121"


def outcome(patch: Patch, version: str, diff: Path | None = None) -> tuple[str, str]:
    variant = patch.variant(version)
    assert variant is not None
    step = Step(patch=patch, version=version, variant=replace(variant, diff=diff or variant.diff))
    (row,) = Bench(SETTINGS).series(sources.fetch("vllm", version, SETTINGS), [step])
    return row.state, row.reason


@pytest.mark.parametrize("name", [MTP, ROUTING])
@pytest.mark.parametrize("version", ["0.16.0", "0.20.2", "0.22.1", "0.26.0", "0.33.0"])
def test_a_patch_is_needed_and_works_on_every_layout_that_upstream_has_had(name: str, version: str) -> None:
    state, detail = outcome(catalog.load(ROOT / "patches")[name], version)
    assert state == "needed", detail


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        (MTP, "len(parts) <= 3", "len(parts) <= 0"),
        (MTP, '== ["mtp", "layers"] and', '[:1] == ["mtp"] or'),
        (ROUTING, "is_device_capability((12, 1))", "is_device_capability((12, 2))"),
        (ROUTING, "is_device_capability((12, 1))", "has_device_capability((12, 0))"),
        (ROUTING, "is_device_capability((12, 1))", "has_device_capability((12, 1))"),
        (ROUTING, "MarlinNvFp4LinearKernel", "CutlassNvFp4LinearKernel"),
        (ROUTING, "NvFp4MoeBackend.MARLIN", "NvFp4MoeBackend.VLLM_CUTLASS"),
    ],
)
@pytest.mark.parametrize("version", ["0.22.1", "0.33.0"])
def test_a_weakened_patch_turns_its_proof_red(tmp_path: Path, name: str, old: str, new: str, version: str) -> None:
    patch = catalog.load(ROOT / "patches")[name]
    variant = patch.variant(version)
    assert variant is not None
    lines = variant.diff.read_text().splitlines(keepends=True)
    weak = "".join(line.replace(old, new) if line.startswith("+") else line for line in lines)
    assert weak != "".join(lines)
    (tmp_path / "weak.diff").write_text(weak)
    state, detail = outcome(patch, version, tmp_path / "weak.diff")
    assert state == "broken", detail


def test_the_series_of_every_cell_holds_on_its_sources() -> None:
    done = factory("patch", "check", "*", "--json")
    assert done.code == 0, done.err
    assert {row["state"] for row in done.json} == {"needed"}


def test_the_published_matrix_of_states_is_what_is_measured(tmp_path: Path) -> None:
    page = tmp_path / "status.md"
    done = factory("patch", "status", "--vllm", ">=0.16,<=0.33.0", "--markdown", str(page), "--json")
    assert done.code == 0, done.err
    published = (ROOT / "docs" / "patch-status.md").read_text().splitlines()
    measured = page.read_text().splitlines()
    assert [line for line in published if line.startswith("| 0.") and line not in measured] == []
