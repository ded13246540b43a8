"""Patches: their added lines and upstream's own are spoilt on real sources, and proven again."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from support import spoilt
from support.mutation import Edit
from support.spoilt import Plan

from mutants import Mutant


def campaign(folder: Path) -> Iterator[Mutant]:
    """Every mutant of every patch, on each of the releases that its ``mutants.yaml`` names."""
    pairs = [(plan, version) for plan in spoilt.plans() for version in plan.releases]
    with ThreadPoolExecutor(2) as pool:
        for found in pool.map(lambda pair: tried(*pair), pairs):
            yield from found


def tried(plan: Plan, version: str, *, seed: int = 0, count: int | None = None) -> list[Mutant]:
    """The mutants of a patch on one release; only ``count`` of the generated ones if given."""
    found = []
    with spoilt.tree(plan.patch, version) as subject:
        code, said = subject.prove()
        assert code == 0, f"{plan.patch.name} on {version}: {said}"
        written = [e for e in plan.by_hand if e.get("release", plan.releases[-1]) == version]
        edits: list[Edit] = [subject.by_hand(entry) for entry in written]
        generated = subject.mutants()
        # chosen by a seed and not for its secrecy
        pick = random.Random(f"{seed} {plan.patch.name}")  # noqa: S311
        chosen = generated if count is None else pick.sample(generated, min(count, len(generated)))
        for edit in [*edits, *chosen]:
            harmless = plan.harmless_because(edit.change)
            alive = not harmless and spoilt.survives(subject, edit)[0]
            found.append(
                Mutant(
                    subject=plan.patch.name,
                    change=f"{version} {edit.change}",
                    killed=not harmless and not alive,
                    harmless=harmless,
                )
            )
    return found
