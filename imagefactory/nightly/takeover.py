"""Takes over what is new: candidate rows into the matrix, then the lock, within the policies."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from packaging.version import Version

from imagefactory import __version__, workflows
from imagefactory.errors import CheckFailedError, FactoryError
from imagefactory.locking import changes, store
from imagefactory.locking.failures import Failure
from imagefactory.locking.locking import COMPARED, Renewed
from imagefactory.matrix import matrix
from imagefactory.matrix.cell import Cell
from imagefactory.matrix.matrix import Matrix
from imagefactory.nightly.values import Broken, Done, Found, broken
from imagefactory.system import files
from imagefactory.watching import watching
from imagefactory.watching.candidates import Candidate
from imagefactory.watching.rows import Row, State
from imagefactory.watching.watching import Report
from imagefactory.workspace import Workspace

#: The states of rows that `lock --upgrade` answers.
MOVING = (State.OUTDATED, State.YANKED)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Taken:
    """Candidates that are in the matrix and locked, the others with why, and the lock."""

    rows: tuple[Candidate, ...]
    refused: tuple[Broken, ...]
    locked: tuple[Renewed, ...]


def detect(workspace: Workspace, asked: str, now: datetime) -> Found:
    """What is new upstream; ``asked`` is what else a night depends on, such as its repository.

    Raises InputError for a matrix or a lock that cannot be read.
    """
    _, report = _look(workspace, now)
    moving = [row for row in report.rows if row.state in MOVING]
    held = list(_held(report.rows))
    rows = [one.as_dict() for one in report.candidates] + [row.as_dict() for row in moving + held]
    news = json.dumps([asked, __version__, *rows], sort_keys=True)
    own = [workspace.matrix, workspace.lock, *_below(workspace.patches, workspace.templates)]
    content = hashlib.sha256(news.replace(str(workspace.project), "").encode())
    for path in own:
        content.update(hashlib.sha256(path.read_bytes()).digest())
    return Found(
        news=(
            *map(_news, report.candidates),
            *dict.fromkeys(map(_moved, moving)),
            *dict.fromkeys(f"{one.name} {one.newest} is held back: {one.reason}" for one in held),
            *(f"{Path(one.where or '').name}: {one.what}" for one in report.warnings),
        ),
        fingerprint=content.hexdigest(),
        broken=(broken("upstream", "detect", report.outage),) if report.outage else (),
    )


def take(workspace: Workspace, now: datetime) -> Done:
    """Write the candidate rows that can be locked, and a lock of all cells.

    A row of which a cell cannot be locked is not taken over. Raises FactoryError if nothing can be.
    """
    declared, report = _look(workspace, now)
    upgrade = any(row.state in MOVING for row in report.rows)
    taken = _taken(workspace, declared, report.candidates, now, upgrade=upgrade)
    final = taken.locked[-1]
    found = [change for one in taken.locked for change in one.changes]
    lost = {name for one in final.failures if not one.kept for name in one.cells}
    return Done(
        lines=(
            *(f"row {_news(one)}" for one in taken.rows),
            *map(str, changes.summarize(found, final.lock)),
        ),
        broken=(*taken.refused, *map(_unlocked, final.failures)),
        stops=tuple(sorted(lost)),
    )


def _taken(
    workspace: Workspace,
    declared: Matrix,
    wanted: Sequence[Candidate],
    now: datetime,
    *,
    upgrade: bool,
) -> _Taken:
    """Write ``wanted`` and lock; again without those of which a cell cannot be locked."""
    text = workspace.matrix.read_text(encoding="utf-8")
    before = {cell.name for cell in declared.cells}
    try:
        if wanted:
            watching.update(declared, wanted)
    except CheckFailedError as error:
        named = ", ".join(map(_news, wanted))
        locked, _ = workflows.lock(workspace, declared, now, upgrade=upgrade)
        refused = broken(named, "row", error)
        return _Taken(rows=(), refused=(refused,), locked=(locked,))
    new = matrix.load(workspace.matrix)
    first, _ = workflows.lock(workspace, new, now, upgrade=upgrade)
    added = [cell for cell in new.cells if cell.name not in before]
    failed = [(one, list(_failures(one, added, first.failures))) for one in wanted]
    good = tuple(one for one, why in failed if not why)
    if len(good) == len(wanted):
        return _Taken(rows=good, refused=(), locked=(first,))
    files.write_text(workspace.matrix, text)
    if good:
        watching.update(declared, good)
    second, _ = workflows.lock(workspace, matrix.load(workspace.matrix), now)
    refused_rows = tuple(
        replace(_unlocked(failure), where=f"row {_news(one)}")
        for one, failures in failed
        for failure in failures
    )
    old = {name for one in first.failures for name in one.cells} & before
    known = {one.name for one in second.failures}
    kept = [one for one in first.failures if not one.cells or {*one.cells} & old]
    kept = [one for one in kept if one.name not in known]
    second = replace(second, failures=(*second.failures, *kept))
    return _Taken(rows=good, refused=refused_rows, locked=(first, second))


def _look(workspace: Workspace, now: datetime) -> tuple[Matrix, Report]:
    declared = matrix.load(workspace.matrix)
    lock = store.read(workspace.lock)
    settings = replace(workspace.settings, named=declared.indexes)
    return declared, watching.outdated(declared, lock, settings, now)


def _failures(
    candidate: Candidate, added: Sequence[Cell], failures: Sequence[Failure]
) -> Iterator[Failure]:
    """Why cells that ``candidate`` adds could not be locked."""
    values = {**candidate.row.values, **candidate.values}.items()
    own = {cell.name for cell in added if values <= cell.axes.items()}
    yield from (one for one in failures if not one.kept and own & {*one.cells})


def _unlocked(failure: Failure) -> Broken:
    error: FactoryError = failure.error
    return broken(", ".join(failure.cells) or failure.name, "lock", error)


def _news(candidate: Candidate) -> str:
    return f"{candidate.changes} ({candidate.kind}, {Path(candidate.row.where).name})"


def _held(rows: Sequence[Row]) -> Iterator[Row]:
    """The rows of vLLM that no row of the matrix follows beyond."""
    own = [row for row in rows if row.name in COMPARED and row.where]
    for row in own:
        newest = max(Version(one.current) for one in own if one.name == row.name)
        if row.state is State.HELD and Version(row.current) == newest:
            yield row


def _moved(row: Row) -> str:
    if row.state is State.YANKED:
        return f"{row.name} {row.current}: {row.reason}"
    return f"{row.name} {row.current} -> {row.compatible}"


def _below(*folders: Sequence[Path]) -> list[Path]:
    found = (path for some in folders for folder in some for path in folder.rglob("*"))
    return sorted(path for path in found if path.is_file() and "__pycache__" not in path.parts)
