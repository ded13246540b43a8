"""Where capability 12.1 goes in vLLM's C++, CMake and FP8 choice, whole and spoilt."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.mutants import SETTINGS, measured, weakened
from support.proofs import judged

from imagefactory.patching import sources
from imagefactory.patching.measure import copy_of

pytestmark = pytest.mark.e2e

ARCH, DISPATCH, FP8 = (
    "vllm/cmake-arch-121",
    "vllm/scaled-mm-sm121-dispatch",
    "vllm/fp8-backend-sm121",
)
ENTRY = "csrc/libtorch_stable/quantization/w8a8/cutlass/scaled_mm_entry.cu"


@pytest.mark.parametrize(
    ("name", "version", "state"),
    [
        *((ARCH, version, "needed") for version in ("0.16.0", "0.18.1", "0.19.0", "0.19.1")),
        *((ARCH, version, "obsolete") for version in ("0.20.0", "0.33.0")),
        *((DISPATCH, version, "obsolete") for version in ("0.16.0", "0.20.2", "0.33.0")),
        *((FP8, version, "needed") for version in ("0.24.0", "0.27.1")),
        *((FP8, version, "obsolete") for version in ("0.23.0", "0.25.1", "0.33.0")),
    ],
)
def test_states_are_as_published(name: str, version: str, state: str) -> None:
    row = measured(name, version)
    assert row.state == state, row.reason


@pytest.mark.parametrize(
    ("name", "version", "old", "new"),
    [
        (ARCH, "0.18.1", '"12.0f;10.0f"', '"12.0a;10.0f"'),
        (
            ARCH,
            "0.19.1",
            ';12.0")',
            ';12.0;12.1f")',
        ),  # the peers' edit: 12.1 as an architecture of its own
        (ARCH, "0.19.1", ";11.0;12.0", ";11.0"),
        (
            FP8,
            "0.27.1",
            "cls.is_device_capability_family(100)",
            "cls.is_device_capability_family(120)",
        ),
        (FP8, "0.27.1", "cls.is_device_capability(90) or", "cls.has_device_capability(90) or"),
    ],
)
def test_a_weakened_patch_turns_the_proof_red(
    tmp_path: Path, name: str, version: str, old: str, new: str
) -> None:
    row = measured(name, version, diff=weakened(name, version, [(old, new)], tmp_path))
    assert row.state == "broken", row.reason


@pytest.mark.parametrize(
    ("name", "file", "old", "new"),
    [
        (DISPATCH, ENTRY, "if (version_num >= 120) {", "if (version_num == 120) {"),
        (DISPATCH, ENTRY, "if (version_num >= 120) {", "if (version_num >= 122) {"),
        # adding 12.1 to what is supported makes plain sm_121 of a working family target
        (ARCH, "CMakeLists.txt", '11.0;12.0"', '11.0;12.0;12.1"'),
    ],
)
def test_a_fault_in_a_later_release_would_be_seen(name: str, file: str, old: str, new: str) -> None:
    with copy_of(sources.fetch("vllm", "0.22.1", SETTINGS).root) as tree:
        text = (tree / file).read_text()
        assert old in text
        (tree / file).unlink()
        (tree / file).write_text(text.replace(old, new))
        code, said = judged(name, tree)
    assert code == 1, said
