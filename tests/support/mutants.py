"""Weakened patches on real sources, and the states that a build would measure for them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from imagefactory.patching import sources, status
from imagefactory.patching.measure import Bench, Measured
from imagefactory.settings import from_environment
from support.project import stock_patches

SETTINGS = from_environment(os.environ)


def measured(
    name: str, version: str, *, cuda: Path | None = None, diff: Path | None = None
) -> Measured:
    """Measure a shipped patch on a release, with ``diff`` instead of its own if it is given."""
    patch = stock_patches()[name]
    tree = sources.fetch(patch.project, version, SETTINGS)
    step = status.step_for(patch, tree)
    if step.variant and diff:
        step = replace(step, variant=replace(step.variant, diff=diff))
    (row,) = Bench(SETTINGS, cuda=cuda).series(tree, [step])
    return row


def weakened(name: str, version: str, changes: Sequence[tuple[str, str]], folder: Path) -> Path:
    """Write a patch's diff for a release with ``changes`` applied to its added lines.

    Every change must match.
    """
    variant = stock_patches()[name].variant(version)
    assert variant is not None
    text = variant.diff.read_text()
    for old, new in changes:
        lines = text.splitlines(keepends=True)
        changed = "".join(
            line.replace(old, new) if line.startswith("+") else line for line in lines
        )
        assert changed != text, f"{old!r} is not in the lines that {variant.diff.name} adds"
        text = changed
    path = folder / "weak.diff"
    path.write_text(text)
    return path
