"""The rules for logs, on the real sources of every release: each text must still be there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from imagefactory.patching import sources
from imagefactory.settings import from_environment
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
