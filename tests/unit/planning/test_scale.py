"""The matrix of many cells whose planning is measured."""

from __future__ import annotations

from pathlib import Path

import plan_scale

from imagefactory import workflows
from imagefactory.commands.options import workspace_of


def test_a_matrix_of_many_cells_is_made_from_our_own_and_can_be_planned(tmp_path: Path) -> None:
    file = plan_scale.project(tmp_path, cells=2, stacks=2)
    plans = workflows.check(workspace_of(file), [])
    assert len({plan.build_key for plan in plans}) == 2 * len(plan_scale.RELEASES)
