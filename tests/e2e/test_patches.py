"""The shipped patches on real vLLM sources.

Needed, working, and red again when they are weakened.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from support import ROOT
from support.e2e import factory
from support.status_page import PAGE, drawn, published, trees_of

from imagefactory import opening, workspace
from imagefactory.matrix import matrix
from imagefactory.patching import catalog, sources, status
from imagefactory.patching.measure import Bench, Measured
from imagefactory.patching.patch import Patch, State, Step
from imagefactory.planning import vllm_settings
from imagefactory.settings import from_environment

pytestmark = pytest.mark.e2e

SETTINGS = from_environment(os.environ)
EARLY = {"VLLM_USE_FLASHINFER_MOE_FP4", "VLLM_NVFP4_GEMM_BACKEND", "VLLM_FLASHINFER_MOE_BACKEND"}
SETTINGS_OF_SEEDS = {*EARLY, "VLLM_TEST_FORCE_FP8_MARLIN", "VLLM_MXFP4_BACKEND"}
#: Releases that are drawn each time; `make test-all` measures all of them.
SAMPLE = 4
MTP, ROUTING = "vllm/mtp-exclusion", "vllm/nvfp4-routing-sm121"


def outcome(patch: Patch, version: str, diff: Path | None = None) -> tuple[str, str]:
    variant = patch.variant(version)
    assert variant is not None
    step = Step(patch=patch, version=version, variant=replace(variant, diff=diff or variant.diff))
    (row,) = Bench(SETTINGS).series(sources.fetch("vllm", version, SETTINGS), [step])
    return row.state, row.reason


@pytest.mark.parametrize("name", [MTP, ROUTING])
@pytest.mark.parametrize("version", ["0.16.0", "0.20.2", "0.22.1", "0.26.0", "0.33.0"])
def test_a_patch_is_needed_and_works_on_every_layout_that_upstream_has_had(
    name: str, version: str
) -> None:
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
def test_a_weakened_patch_turns_its_proof_red(
    tmp_path: Path, name: str, old: str, new: str, version: str
) -> None:
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
    assert {row["state"] for row in done.json} <= {"needed", "declared", "obsolete", "n/a"}


def wrong_in_the_series_of_gb10(releases: Iterable[str]) -> list[Measured]:
    flavor = next(
        cell.flavor
        for cell in matrix.load(ROOT / "matrix.yaml").cells
        if cell.flavor.name == "gb10"
    )
    found = catalog.load(ROOT / "patches")
    bench = Bench(SETTINGS)

    def measured(release: str) -> list[Measured]:
        tree = sources.fetch("vllm", release, SETTINGS)
        return bench.series(tree, [status.step_for(found[name], tree) for name in flavor.patches])

    with ThreadPoolExecutor(2) as pool:
        rows = [row for rows in pool.map(measured, releases) for row in rows]
    # sources do not have what such a proof looks at: that the diff applies is all that is known
    on_images = {name for name, one in found.items() if one.proof and one.proof.kind == "installed"}
    good = {State.NEEDED, State.OBSOLETE, State.NOT_APPLICABLE}
    return [
        row
        for row in rows
        if row.state not in (good | {State.DECLARED} if row.patch in on_images else good)
    ]


def releases_of_vllm() -> list[str]:
    return list(sources.releases("vllm", SpecifierSet(">=0.16,<=0.33.0"), SETTINGS))


def test_the_whole_series_of_gb10_holds_on_the_first_the_last_and_some_other_releases() -> None:
    first, *others, last = releases_of_vllm()
    assert wrong_in_the_series_of_gb10([first, *drawn(others, SAMPLE), last]) == []


@pytest.mark.large
def test_the_whole_series_of_gb10_holds_on_every_release() -> None:
    assert wrong_in_the_series_of_gb10(releases_of_vllm()) == []


def as_measured(rows: Sequence[Measured]) -> list[Measured]:
    """``rows`` of the published page, measured again."""
    patches = list(catalog.load(ROOT / "patches").values())
    bench = opening.bench(workspace.find(ROOT / "matrix.yaml", os.environ), patches)
    return status.measure(patches, trees_of(rows, SETTINGS), bench)


def test_the_published_page_of_states_has_what_is_measured_on_some_releases() -> None:
    page = PAGE.read_text()
    rows = published(page)
    some = drawn(list(dict.fromkeys((row.project, row.version) for row in rows)), SAMPLE)
    again = as_measured([row for row in rows if (row.project, row.version) in some])
    others = [row for row in rows if (row.project, row.version) not in some]
    patches = list(catalog.load(ROOT / "patches").values())
    assert status.markdown(status.by_patch([*others, *again]), patches) == page


@pytest.mark.large
def test_the_published_page_of_states_is_what_is_measured() -> None:
    page = PAGE.read_text()
    patches = list(catalog.load(ROOT / "patches").values())
    assert status.markdown(as_measured(published(page)), patches) == page


@pytest.mark.parametrize(
    ("release", "gone"),
    [
        ("0.23.0", {"VLLM_MXFP4_BACKEND"}),
        ("0.24.0", {*EARLY, "VLLM_MXFP4_BACKEND"}),
        ("0.29.0", {*EARLY, "VLLM_MXFP4_BACKEND", "VLLM_TEST_FORCE_FP8_MARLIN"}),
    ],
)
def test_the_variables_that_vanished_are_unknown_from_the_release_on_that_dropped_them(
    release: str, gone: set[str]
) -> None:
    found = vllm_settings.read(sources.fetch("vllm", release, SETTINGS).root)
    assert {name for name in SETTINGS_OF_SEEDS if not found.knows(name)} == gone


@pytest.mark.parametrize(
    ("option", "first"), [("--linear-backend", "0.22.0"), ("--mamba-backend", "0.20.0")]
)
def test_an_option_is_known_from_the_release_on_that_brought_it(option: str, first: str) -> None:
    before = {"0.22.0": "0.21.0", "0.20.0": "0.19.1"}[first]
    assert vllm_settings.read(sources.fetch("vllm", first, SETTINGS).root).knows(option)
    assert not vllm_settings.read(sources.fetch("vllm", before, SETTINGS).root).knows(option)


def test_a_setting_that_vanished_stops_the_plan_with_its_line(tmp_path: Path) -> None:
    for name in ("patches", "templates", "wheels.lock"):
        (tmp_path / name).symlink_to(ROOT / name)
    text = (ROOT / "matrix.yaml").read_text()
    line = "      TORCH_CUDA_ARCH_LIST: 12.1a\n"
    (tmp_path / "matrix.yaml").write_text(
        text.replace(line, f"{line}      VLLM_NVFP4_GEMM_BACKEND: marlin\n")
    )
    done = factory("plan", cwd=tmp_path)
    assert done.code == 2
    number = text[: text.index(line)].count("\n") + 2
    assert (
        f"matrix.yaml:{number}: vLLM 0.33.0 does not know VLLM_NVFP4_GEMM_BACKEND of flavor gb10"
        in done.err
    )


def test_a_variant_that_is_gone_is_ported_again_from_the_one_before_and_is_green(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "patches/vllm/nvfp4-routing-sm121"
    shutil.copytree(ROOT / "patches/vllm/nvfp4-routing-sm121", folder)
    for name in ("matrix.yaml", "wheels.lock"):
        shutil.copy(ROOT / name, tmp_path)
    entry = (folder / "patch.yaml").read_text()
    (folder / "0.29.diff").unlink()
    (folder / "patch.yaml").write_text(
        re.sub(r"  - versions: [^\n]*\n    diff: 0.29.diff\n", "", entry)
    )
    done = factory(
        "patch", "port", "vllm/nvfp4-routing-sm121", "--to", "0.33.0", "--json", cwd=tmp_path
    )
    assert done.code == 0, done.err
    (row,) = done.json
    assert (row["outcome"], row["base"]) == ("merged", "0.28.0")
    checked = factory(
        "patch", "port", "vllm/nvfp4-routing-sm121", "--to", "0.33.0", "--json", cwd=tmp_path
    )
    assert checked.json[0]["outcome"] == "already works"
