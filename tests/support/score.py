"""Whether a share of killed mutants is below what is aimed at."""

from __future__ import annotations

from math import comb

#: With fewer mutants than this, chance decides; then only what chance hardly explains is a miss.
ENOUGH = 25
UNLIKELY = 0.01


def is_missed(tried: int, killed: int, goal: float) -> bool:
    """Whether tests that kill the share ``goal`` of all mutants would have killed more of these.

    Of a few mutants they may kill less by chance: it is a miss if that happens in less than one of
    a hundred draws. A goal of 1 knows no chance.
    """
    if goal >= 1 or tried >= ENOUGH:
        return killed < goal * tried
    chance = sum(
        comb(tried, number) * goal**number * (1 - goal) ** (tried - number)
        for number in range(killed + 1)
    )
    return chance < UNLIKELY
