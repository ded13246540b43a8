"""The stock recipes against the sources of the releases that the index has."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.e2e import factory

pytestmark = pytest.mark.e2e


def test_every_stock_recipe_passes_on_every_cell_that_it_is_for(project: Path) -> None:
    done = factory("recipe", "check", "--json", cwd=project)
    assert done.code == 0, done.err
    assert len({one["recipe"] for one in done.json}) >= 29
    assert {one["target"].split("-")[0] for one in done.json} == {"gb10", "cpu"}


@pytest.mark.parametrize("release", ["0.16.0", "0.19.1", "0.24.0"])
def test_every_stock_recipe_passes_on_releases_where_settings_changed(
    project: Path, release: str
) -> None:
    done = factory("recipe", "check", "--vllm", release, "--json", cwd=project)
    assert done.code == 0, done.err
    assert done.json


def test_a_dead_option_a_wrong_value_and_a_missing_parser_are_found(project: Path) -> None:
    folder = project / "recipes"
    folder.mkdir(exist_ok=True)
    (folder / "bad.yaml").write_text(
        'summary: s\nmodel: o/m\nweights: bf16\nvllm: ">=0.22"\noptions:\n'
        '  gpu-memory-utilization: "0.5"\n'
        "  kv-cache-dtype: fp9\n"
        "  reasoning-parser: nano_v3\n"
        "  compilation-config: {level: 3}\n"
        "  speculative-disable-by-batch-size: 32\n"
        "env: {VLLM_MXFP4_BACKEND: marlin}\n"
    )
    done = factory("recipe", "check", "bad", "--vllm", "0.33.0", cwd=project)
    assert done.code == 1
    for line, fix in (
        (7, "write fp8"),
        (8, "write nemotron_v3"),
        (9, "write mode"),
        (10, "num_speculative_tokens_per_batch_size"),
        (11, "--moe-backend"),
    ):
        assert f"recipes/bad.yaml:{line}: " in done.err
        assert fix in done.err
