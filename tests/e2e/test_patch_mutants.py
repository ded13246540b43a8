"""Some mutants of every patch die, and some refactorings of upstream turn no proof red.

`make mutants` tries all of them.
"""

from __future__ import annotations

import pytest
from mutants import patches, refactors
from support import spoilt
from support.spoilt import Plan

pytestmark = pytest.mark.e2e

#: Mutants that a generator makes, for each patch; those by hand are tried as well.
COUNT = 2
#: Proofs that compile have mutants in test_patch_e2m1_software.py and test_patch_flashinfer.py.
PLANS = [
    plan for plan in spoilt.plans() if plan.patch.proof and "nvcc" not in plan.patch.proof.needs
]


@pytest.mark.parametrize("plan", PLANS, ids=[plan.patch.name for plan in PLANS])
def test_a_patch_that_is_spoilt_turns_its_proof_red(plan: Plan) -> None:
    tried = patches.tried(plan, plan.releases[-1], count=COUNT)
    alive = [one.change for one in tried if not one.killed and not one.harmless]
    assert (bool(tried), alive) == (True, [])


@pytest.mark.parametrize(
    ("plan", "rewrite"),
    [pytest.param(plan, plan.refactors[0], id=plan.patch.name) for plan in PLANS if plan.refactors],
)
def test_a_refactoring_of_upstream_turns_no_proof_red(plan: Plan, rewrite: spoilt.Rewrite) -> None:
    code, said = refactors.judged(plan, rewrite)
    assert code != 1, said
