"""What is known of cells and patches at the end of a night, for its record. It stops no night.

Nothing is built or fetched that the night did not need itself: sources of patches and answers of
proofs are in the cache by then.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from imagefactory import __version__, pipeline, workflows
from imagefactory.errors import FactoryError
from imagefactory.matrix import matrix
from imagefactory.nightly import journal, record
from imagefactory.nightly.record import CellState, Image, PatchRecord, Record
from imagefactory.nightly.values import Night
from imagefactory.planning.cell_plan import LABEL, CellPlan
from imagefactory.results import Planned
from imagefactory.workspace import Workspace


def keep(workspace: Workspace, night: Night, folder: Path) -> Path:
    """Write the record of a night that has ended; ``folder`` is that of the project's nights."""
    made = observe(workspace, night, folder)
    return record.write(folder / record.FOLDER, made, night.project)


def observe(workspace: Workspace, night: Night, folder: Path) -> Record:
    """The record of a night whose journal is still in ``folder``."""
    own = replace(workspace, matrix=night.project / workspace.matrix.name, project=night.project)
    unchanged = {row.cell for row in night.cells if row.state == CellState.UNCHANGED}
    worked_on = [row.cell for row in night.cells if row.cell not in unchanged]
    return record.of(
        night,
        ended=datetime.now(UTC),
        version=__version__,
        seconds=journal.seconds(folder),
        images={} if night.quiet else _images(own),
        patches=_patches(own, worked_on),
    )


def _images(workspace: Workspace) -> dict[str, Image]:
    """What is known of each cell that can be planned; of the others, what the matrix says."""
    known: dict[str, Image] = {}
    try:
        for cell in matrix.load(workspace.matrix).cells:
            known[cell.name] = Image(versions=cell.pins)
        planned = pipeline.plan(workspace, [], allow_uncovered=True)
    except (FactoryError, OSError):
        return known
    return known | {plan.cell.name: _image(plan, planned) for plan in planned.plans}


def _image(plan: CellPlan, planned: Planned) -> Image:
    found = (planned.images or {}).get(plan.cell.tag)
    if found is None or found.labels.get(f"{LABEL}.build-key") != plan.build_key:
        return Image(build_key=plan.build_key, versions=plan.cell.pins)
    return Image(
        digest=found.digest,
        build_key=plan.build_key,
        size=found.size,
        versions=plan.cell.pins,
    )


def _patches(workspace: Workspace, cells: Iterable[str]) -> tuple[PatchRecord, ...]:
    """The states of the patches of ``cells``; one that stops a build goes before all others."""
    found: dict[tuple[str, str], PatchRecord] = {}
    for name in cells:
        try:
            (checked,) = workflows.check_patches(workspace, [name])
        except (FactoryError, OSError):  # such as sources that no index has: nothing is known
            continue
        for row in checked.rows:
            key = row.patch, row.version
            if key not in found or row.state.stops_build:
                found[key] = PatchRecord(
                    patch=row.patch, version=row.version, state=row.state, reason=row.reason
                )
    return tuple(found[key] for key in sorted(found))
