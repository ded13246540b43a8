"""E2M1 in software: the same bits as the instruction.

And the instruction wherever the target has it.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support import ROOT
from support.mutants import measured, weakened

from imagefactory.patching import catalog

pytestmark = pytest.mark.e2e

NAME = "vllm/e2m1-software"


@pytest.mark.parametrize("version", ["0.16.0", "0.18.1", "0.20.2", "0.33.0"])
def test_a_plain_target_compiles_with_the_patch_only(version: str, cuda: Path) -> None:
    row = measured(NAME, version, cuda=cuda)
    assert row.state == "needed", row.reason
    assert "not supported on .target 'sm_121'" in row.reason


@pytest.mark.parametrize(
    ("old", "new", "seen"),
    [
        *(
            (f"ax {right} {tie}f", f"ax {wrong} {tie}f", "conversion is wrong")
            for tie, right, wrong in (
                ("0.25", ">", ">="),
                ("0.75", ">=", ">"),
                ("1.25", ">", ">="),
                ("1.75", ">=", ">"),
                ("2.5", ">", ">="),
                ("3.5", ">=", ">"),
                ("5.0", ">", ">="),
            )
        ),
        ("return 0x7;", "return 0xF;", "conversion is wrong"),
        ("return 0x7;", "return 0x0;", "conversion is wrong"),
        ("& 0x8", "& 0x0", "conversion is wrong"),
        ("<< (4 * i)", "<< (28 - 4 * i)", "conversion is wrong"),
        ("&array[4].x", "&array[0].x", "conversion is wrong"),
        ("#if defined(__CUDA_ARCH__) && ", "#if __CUDA_ARCH__ == 1210 || ", "do without it"),
        ("#define VLLM_E2M1_IN_SOFTWARE 0", "#define VLLM_E2M1_IN_SOFTWARE 1", "do without it"),
        ("#define VLLM_E2M1_IN_SOFTWARE 1", "#define VLLM_E2M1_IN_SOFTWARE 0", "does not compile"),
    ],
)
def test_a_weakened_patch_turns_the_proof_red(
    tmp_path: Path, cuda: Path, old: str, new: str, seen: str
) -> None:
    row = measured(NAME, "0.33.0", cuda=cuda, diff=weakened(NAME, "0.33.0", [(old, new)], tmp_path))
    assert row.state == "broken", row.reason
    assert seen in row.reason


def test_a_guard_that_names_one_architecture_switches_the_instruction_off_where_it_exists(
    tmp_path: Path, cuda: Path
) -> None:
    text = weakened(
        NAME,
        "0.33.0",
        [("#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_SPECIFIC__) && \\", "#if 0 || \\")],
        tmp_path,
    )
    text.write_text(
        text.read_text().replace("!defined(__CUDA_ARCH_FAMILY_SPECIFIC__)", "__CUDA_ARCH__ == 1210")
    )
    row = measured(NAME, "0.33.0", cuda=cuda, diff=text)
    assert row.state == "broken"
    assert "sm_121a has the instruction, and 16 of 16 conversions do without it" in row.reason


def test_a_guard_that_does_not_know_families_switches_the_instruction_off_on_sm_120f(
    tmp_path: Path, cuda: Path
) -> None:
    text = weakened(NAME, "0.33.0", [("!defined(__CUDA_ARCH_FAMILY_SPECIFIC__)", "1")], tmp_path)
    row = measured(NAME, "0.33.0", cuda=cuda, diff=text)
    assert row.state == "broken"
    assert "sm_120f has the instruction, and 16 of 16 conversions do without it" in row.reason


@pytest.mark.parametrize("version", ["0.16.0", "0.33.0"])
@pytest.mark.parametrize("forgotten", [0, 1, 2])
def test_a_patch_that_forgets_one_of_the_conversions_is_broken(
    tmp_path: Path, cuda: Path, forgotten: int, version: str
) -> None:
    variant = catalog.load(ROOT / "patches")[NAME].variant(version)
    assert variant is not None
    guard = "+#if VLLM_E2M1_IN_SOFTWARE\n"
    parts = variant.diff.read_text().split(guard)
    assert len(parts) == 4
    head, tail = guard.join(parts[: forgotten + 1]), guard.join(parts[forgotten + 1 :])
    (tmp_path / "weak.diff").write_text(f"{head}+#if 0\n{tail}")
    row = measured(NAME, version, cuda=cuda, diff=tmp_path / "weak.diff")
    assert row.state == "broken", row.reason
    assert "plain sm_121 does not compile" in row.reason


def test_another_right_conversion_is_as_good(tmp_path: Path, cuda: Path) -> None:
    counted = [
        (
            "(ax > 0.25f) + (ax >= 0.75f) + (ax > 1.25f) +",
            "ax <= 0.25f ? 0 : ax < 0.75f ? 1 : ax <= 1.25f ? 2 :",
        ),
        (
            "(ax >= 1.75f) + (ax > 2.5f) + (ax >= 3.5f) +",
            "ax < 1.75f ? 3 : ax <= 2.5f ? 4 : ax < 3.5f ? 5 :",
        ),
        ("(ax > 5.0f);", "ax <= 5.0f ? 6 : 7;"),
    ]
    row = measured(NAME, "0.33.0", cuda=cuda, diff=weakened(NAME, "0.33.0", counted, tmp_path))
    assert row.state == "needed", row.reason


def test_without_a_toolchain_nothing_is_claimed() -> None:
    assert measured(NAME, "0.33.0").state == "unknown"
