"""Refactorings: upstream's code is rewritten without a change of behaviour; no proof may go red."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from support import spoilt
from support.spoilt import Plan, Rewrite

from imagefactory.inbuild import proofkit
from mutants import Mutant


def campaign(folder: Path) -> Iterator[Mutant]:
    """Every refactoring of every patch; ``killed`` means that the proof did not go red.

    On patched sources a proof is right, or inconclusive where it does not find its subject.
    """
    pairs = [(plan, rewrite) for plan in spoilt.plans() for rewrite in plan.refactors]
    with ThreadPoolExecutor(2) as pool:
        yield from pool.map(lambda pair: tried(*pair), pairs)


def tried(plan: Plan, rewrite: Rewrite) -> Mutant:
    """One refactoring on a patched tree."""
    code, said = judged(plan, rewrite)
    return Mutant(
        subject=plan.patch.name,
        change=f"{rewrite.release} {rewrite.what} ({code}): {said[:200]}",
        killed=code != proofkit.SYMPTOM,
    )


def judged(plan: Plan, rewrite: Rewrite) -> tuple[int, str]:
    """How the proof ends on sources that are patched and rewritten."""
    with (
        spoilt.tree(plan.patch, rewrite.release) as subject,
        subject.changed(subject.rewritten(rewrite)),
    ):
        return subject.prove()
