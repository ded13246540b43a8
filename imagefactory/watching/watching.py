"""The watching station: what is newer upstream, why it is held back, and what to take over.

Everything is judged at a moment that the caller gives, so that the past can be replayed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from imagefactory.errors import CheckFailedError, InputError, Problem, SetupError
from imagefactory.locking.lock import Lock, Wheel
from imagefactory.matrix import matrix as matrices
from imagefactory.matrix.matrix import Matrix
from imagefactory.settings import Settings
from imagefactory.system import files
from imagefactory.system.background import in_background
from imagefactory.watching import assessing, edit, others, rows
from imagefactory.watching import candidates as proposals
from imagefactory.watching.assessing import View
from imagefactory.watching.candidates import Candidate
from imagefactory.watching.indexes_now import IndexesNow
from imagefactory.watching.releases import Upstream
from imagefactory.watching.rows import Part, Row, State

#: Packages that a message about an outage names.
NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What is newer upstream.

    Attributes:
        rows: all that is watched, in the order of the lock.
        candidates: how the rows of the matrix could change.
        warnings: what is wrong with policies: holds that ended, names that nothing has.
    """

    rows: tuple[Row, ...]
    candidates: tuple[Candidate, ...]
    warnings: tuple[Problem, ...]

    @property
    def needs_attention(self) -> bool:
        """Whether something is newer within the policy, was withdrawn, or a hold has ended."""
        moving = {State.OUTDATED, State.YANKED}
        newer = any(row.state in moving for row in self.rows)
        return bool(self.candidates or self.warnings) or newer

    @property
    def outage(self) -> SetupError | None:
        """Why rows are unknown, each reason once, whatever the page; None if none is."""
        unknown: dict[str, list[str]] = {}
        for row in self.rows:
            if row.state is State.UNKNOWN:
                page = f"/{row.name}/"
                unknown.setdefault(row.reason.replace(page, "/.../"), []).append(row.name)
        if not unknown:
            return None
        return SetupError(
            Problem(
                code="upstream-unknown",
                what=f"{_some(list(dict.fromkeys(names)))}: {reason}",
                fix="try again later; imagefactory doctor checks the indexes",
            )
            for reason, names in unknown.items()
        )


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def outdated(
    declared: Matrix,
    lock: Lock,
    settings: Settings,
    now: datetime,
    *,
    every: bool = False,
    upstream: Upstream | None = None,
) -> Report:
    """Compare all that ``declared`` and ``lock`` pin with what is upstream at ``now``.

    With ``every``, all wheels of the lock, not only those that the matrix names and those of CUDA.
    ``upstream`` stands for the indexes; bases and git refs are then left out. What cannot be read
    is unknown, and stops nothing else.
    """
    index: Upstream = upstream or IndexesNow(settings, now)
    view = View(upstream=index, policies=declared.policies, today=now.date())
    watched = _watched(declared, lock, every=every)
    elsewhere = in_background(
        lambda: [] if upstream else others.look_up(declared.cells, lock, settings, view)
    )
    if isinstance(index, IndexesNow):
        pins = [pin for cell in declared.cells for pin in assessing.pins(cell).values()]
        wheels = [(wheel.name, part.index(wheel.name)) for part, some in watched for wheel in some]
        index.read([*((pin.project, pin.index) for pin in pins), *wheels])
        index.read_requirements(proposals.to_read(declared.cells, view))
    found = [row for part, some in watched for row in rows.of_part(part, some, view)]
    found += elsewhere.result()
    names = rows.policy_names(declared.cells, lock)
    today = now.date()
    return Report(
        rows=tuple(found),
        candidates=proposals.candidates(declared.cells, index, declared.policies, today),
        warnings=(*declared.policies.expired(today), *declared.policies.idle(names)),
    )


def _watched(declared: Matrix, lock: Lock, *, every: bool) -> list[tuple[Part, list[Wheel]]]:
    """The parts of the lock, each with the wheels that are looked up."""
    policies = {*declared.policies.follow, *declared.policies.holds}
    parts = rows.parts(declared.cells, declared.toolchains, lock)
    found = [
        (part, [w for w in part.wheels if every or part.is_watched(w.name, policies)])
        for part in parts
    ]
    found += [(part, list(part.wheels)) for part in rows.unpacker(lock)]
    return [(part, some) for part, some in found if some]


def update(declared: Matrix, chosen: Sequence[Candidate]) -> None:
    """Write ``chosen`` into the file of ``declared``, whose comments and layout stay as they are.

    Nothing is written unless the result is a valid matrix. Raises CheckFailedError for a row that
    cannot be found, or a result that is not valid.
    """
    path = declared.path
    text = edit.apply(path.read_text(encoding="utf-8"), chosen)
    with files.replacing(path) as part:
        part.write_text(text, encoding="utf-8")
        try:
            matrices.load(part)
        except InputError as error:
            raise CheckFailedError(_of_the_result(error.problems, part, path)) from None


def _of_the_result(problems: Iterable[Problem], part: Path, path: Path) -> list[Problem]:
    """``problems`` of the changed file, as those of a change that was not written."""
    return [
        replace(
            one,
            where=(one.where or "").replace(str(part), str(path)) or None,
            what=f"with the new rows the matrix would not be valid: {one.what}",
        )
        for one in problems
    ]
