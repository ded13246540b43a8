"""What is read of vLLM's sources, on the real ones: rules for logs, tuning, models, options."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from imagefactory.patching import sources
from imagefactory.planning import vllm_models, vllm_short
from imagefactory.settings import from_environment
from imagefactory.tuning import release
from imagefactory.verifying.log_rules import Rule, all_rules

pytestmark = pytest.mark.e2e

SETTINGS = from_environment(os.environ)
#: One release of each layout of the sources, and the newest.
VERSIONS = ("0.16.0", "0.19.1", "0.22.1", "0.26.0", "0.33.0")


def gone(rules: tuple[Rule, ...], version: str, tree: Path) -> list[str]:
    """The rules about a release whose text is not in its sources."""
    left = {
        rule.name: rule.source
        for rule in rules
        if rule.project == "vllm" and SpecifierSet(rule.vllm).contains(version)
    }
    for path in (tree / "vllm").rglob("*.py"):
        text = path.read_text(errors="replace")
        left = {name: source for name, source in left.items() if source not in text}
        if not left:
            break
    return sorted(left)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_rule_is_about_a_line_that_the_release_can_write(version: str) -> None:
    tree = sources.fetch("vllm", version, SETTINGS).root
    assert gone(all_rules(), version, tree) == []
    stale = all_rules()[0].model_copy(update={"source": "Using NvFp4LinearBackend.NONE"})
    assert gone((stale,), version, tree) == [stale.name]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_release_says_how_it_is_tuned_and_what_it_has(version: str) -> None:
    tree = sources.fetch("vllm", version, SETTINGS)
    tuned = release.read(tree)
    assert {"auto", "fp8_w8a8"} <= {*tuned.tunes}
    assert (len(tuned.required), [*tuned.optional]) == (6, ["SPLIT_K"])
    assert (tuned.batch_sizes[0], tuned.batch_sizes[-1]) == (1, 4096)
    assert "Qwen3MoeForCausalLM" in vllm_models.read(tree.root)
    assert vllm_short.read(tree.root)["-tp"] == "--tensor-parallel-size"
