"""Entries about models.

Gemma 4's experts, Nemotron's parser, and the loader for machines with a GPU each.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.mutants import measured, weakened

pytestmark = pytest.mark.e2e

GEMMA, NEMOTRON, LOADER = (
    "vllm/gemma4-expert-scales",
    "vllm/nemotron-ultra",
    "vllm/fastsafetensors-loader",
)


@pytest.mark.parametrize(
    ("name", "version", "state"),
    [
        (GEMMA, "0.16.0", "n/a"),
        (GEMMA, "0.19.0", "needed"),
        (GEMMA, "0.19.1", "obsolete"),
        (GEMMA, "0.30.0", "obsolete"),
        *((name, "0.16.0", "needed") for name in (NEMOTRON, LOADER)),
        *(
            (name, version, "obsolete")
            for name in (NEMOTRON, LOADER)
            for version in ("0.17.1", "0.23.0", "0.33.0")
        ),
    ],
)
def test_states_are_as_published(name: str, version: str, state: str) -> None:
    row = measured(name, version)
    assert row.state == state, row.reason


@pytest.mark.parametrize(
    ("name", "version", "old", "new", "seen"),
    [
        (GEMMA, "0.19.0", 'r"_weight\\.(\\w+)$"', 'r"_weight\\.(input_scale)$"', "KeyError"),
        (GEMMA, "0.19.0", '"scale" in moe_name or ', "", "AssertionError"),
        (GEMMA, "0.19.0", "   moe_name,", '   weight_name + ".weight",', "do not arrive"),
        (GEMMA, "0.19.0", '.moe.experts.\\1."', '.moe.experts.0."', "do not arrive"),
        (NEMOTRON, "0.16.0", '"NemotronV3ReasoningParser"', '"OtherParser"', "which is not in"),
        (NEMOTRON, "0.16.0", "return None, reasoning", "return reasoning, content", "is read as"),
        (NEMOTRON, "0.16.0", '"nemotron_v3":', '"nemotron":', "no such parser"),
        (LOADER, "0.16.0", "current_platform.current_device()", "pg.size() - 1", "cuda:1"),
    ],
)
def test_a_weakened_patch_turns_the_proof_red(
    tmp_path: Path, name: str, version: str, old: str, new: str, seen: str
) -> None:
    row = measured(name, version, diff=weakened(name, version, [(old, new)], tmp_path))
    assert row.state == "broken", row.reason
    assert seen in row.reason
