"""Finds the first version of vLLM that breaks a cell, with the stations that need no build.

Each version between a good and a bad one is tried in a copy of the project, as a night takes it
over: its row is written, the cell is locked, and its patches are checked. That takes seconds or
minutes, where a build takes hours.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from packaging.version import InvalidVersion, Version

from imagefactory import workflows
from imagefactory.errors import FactoryError, InputError, Problem, SetupError, fail
from imagefactory.matrix import matrix
from imagefactory.matrix.cell import Cell, request_of
from imagefactory.matrix.select import select
from imagefactory.nightly import branch
from imagefactory.system import temporary, ui
from imagefactory.watching import candidates, watching
from imagefactory.watching.assessing import LEAD, Pin, View, pins, wheel_for
from imagefactory.watching.candidates import Candidate
from imagefactory.watching.indexes_now import IndexesNow
from imagefactory.watching.releases import Upstream
from imagefactory.workspace import Workspace

#: Where the commits and tags of vLLM are compared.
COMPARE = "https://github.com/vllm-project/vllm/compare/"
#: The code of a version that has a wheel, but whose sources no index has.
NO_SOURCES = "sources-unreachable"
#: The commit in the local part of a nightly wheel's version, such as ``+g1234567.cu130``.
_COMMIT = re.compile(r"(?:^|\.)g([0-9a-f]{7,40})(?:\.|$)")


class Outcome(StrEnum):
    """Whether a version is good; unknown if it could not be tried."""

    GOOD = "good"
    BAD = "bad"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What became of a version: the step that failed or could not be done, and why."""

    version: Version
    outcome: Outcome
    step: str = ""
    problems: tuple[Problem, ...] = ()

    def __str__(self) -> str:
        if self.outcome is Outcome.GOOD and self.problems:
            return f"{self.version}: good, as far as its {self.step} are not concerned"
        return f"{self.version}: {self.outcome}{f' ({self.step})' if self.step else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The result of a search.

    Attributes:
        good: the last version that is known to be good.
        bad: the first one that is known to be bad.
        between: those between them that were not tried, or could not be.
        trials: all that were tried, in this order.
    """

    good: Version
    bad: Version
    between: tuple[Version, ...]
    trials: tuple[Trial, ...]

    @property
    def commits(self) -> str:
        """The commits of vLLM between both, as git and GitHub write a range."""
        return f"{_commit(self.good)}...{_commit(self.bad)}"

    @property
    def why(self) -> Trial:
        """The trial of the first bad version."""
        return next(one for one in self.trials if one.version == self.bad)


def _commit(version: Version) -> str:
    """The commit that a nightly wheel was built from, or the tag of a release."""
    found = _COMMIT.search(version.local or "")
    return found[1] if found else f"v{version.public}"


def search(
    versions: Sequence[Version], trial: Callable[[Version], Trial], more: Callable[[int], bool]
) -> Found:
    """The first bad one of ``versions``, whose first is good and whose last is bad.

    ``more`` says whether another trial is within the budget, given how many there were. Raises
    InputError if the first one is not good, or the last one is not bad.
    """
    trials = [trial(versions[-1]), trial(versions[0])]
    for one, wanted in zip(trials, (Outcome.BAD, Outcome.GOOD), strict=True):
        if one.outcome is not wanted:
            what = f"{one.version} is {one.outcome}, not {wanted}"
            said = "\n".join(problem.what for problem in one.problems)
            fix = "name a version of which it is known, with --good and --bad"
            raise InputError(Problem(code="bisect-end", what=what, fix=fix, detail=said))
    low, high, unknown = 0, len(versions) - 1, set[int]()
    while more(len(trials)):
        middle = (low + high) / 2
        left = [number for number in range(low + 1, high) if number not in unknown]
        if not left:
            break
        number = min(left, key=lambda number: abs(number - middle))
        trials.append(one := trial(versions[number]))
        if one.outcome is Outcome.GOOD:
            low = number
        elif one.outcome is Outcome.BAD:
            high = number
        else:
            unknown.add(number)
    return Found(
        good=versions[low],
        bad=versions[high],
        between=tuple(versions[low + 1 : high]),
        trials=tuple(trials),
    )


def run(
    workspace: Workspace,
    selection: str,
    ends: tuple[str | None, str],
    now: datetime,
    *,
    most: int,
    minutes: float | None = None,
    upstream: Upstream | None = None,
) -> Found:
    """The first bad version for one cell; ``ends`` are a good one, else the cell's own, and a bad.

    At most ``most`` versions are tried, and none after ``minutes``. Raises InputError for ends that
    are none, or that the index does not have.
    """
    declared = matrix.load(workspace.matrix)
    cell = _one(declared.cells, selection)
    pin = pins(cell).get(LEAD)
    if pin is None:
        what, fix = f"{cell.name} takes vLLM from no index", "name a cell whose vLLM is a version"
        raise fail(InputError, "bisect-no-version", what, where=str(cell.locations[LEAD]), fix=fix)
    index = upstream or IndexesNow(replace(workspace.settings, named=declared.indexes), now)
    view = View(upstream=index, policies=declared.policies, today=now.date())
    versions = between(cell, pin, index, _version(ends[0] or cell.vllm), _version(ends[1]))
    began = time.monotonic()

    def more(tried: int) -> bool:
        late = minutes is not None and time.monotonic() - began >= minutes * 60
        return tried < most and not late

    with temporary.folder(prefix="imagefactory-bisect-") as folder:
        tree = branch.copy(workspace, folder, resumed=False)

        def trial(version: Version) -> Trial:
            tree.restore()
            done = _try(tree.workspace, cell, version, view, now)
            ui.say(str(done))
            return done

        return search(versions, trial, more)


def _one(cells: Sequence[Cell], selection: str) -> Cell:
    found = select(cells, [selection])
    if len(found) > 1:
        what = f"{selection!r} matches {len(found)} cells: {', '.join(one.name for one in found)}"
        raise fail(InputError, "bisect-which", what, fix="name one of them")
    return found[0]


def _version(text: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion:
        fix = "write a PEP 440 version, such as 0.25.1.dev12+g1234567"
        raise fail(InputError, "bisect-version", f"{text!r} is not a version", fix=fix) from None


def between(
    cell: Cell, pin: Pin, index: Upstream, good: Version, bad: Version
) -> tuple[Version, ...]:
    """The versions from ``good`` to ``bad`` that have a wheel for ``cell``, oldest first.

    Raises SetupError if the index does not answer, InputError if it lacks one of both.
    """
    listing = index.listing(pin.project, pin.index)
    if listing.problem:
        raise SetupError(listing.problem)
    request = request_of(cell)
    usable = [r for r in listing.newest_first if not isinstance(wheel_for(r, request), str)]
    versions = tuple(one.version for one in reversed(usable) if good <= one.version <= bad)
    missing = [str(one) for one in (good, bad) if one not in versions]
    if missing or good == bad:
        what = f"no index has {pin.project} {' or '.join(missing)} for {cell.name}"
        if not missing or good > bad:
            what = f"{good} is not older than {bad}"
        raise fail(InputError, "bisect-end", what, fix="name others with --good and --bad")
    return versions


def _try(workspace: Workspace, cell: Cell, version: Version, view: View, now: datetime) -> Trial:
    """Take ``version`` over for ``cell``, and lock it and check its patches."""
    step = "row"
    try:
        axes = _take(workspace, cell, version, view)
        declared = matrix.load(workspace.matrix)
        own = next(one for one in declared.cells if axes.items() <= one.axes.items())
        step = "lock"
        renewed, _ = workflows.lock(workspace, replace(declared, cells=(own,)), now)
        for failure in renewed.failures:
            raise failure.error
        step = "patches"
        (checked,) = workflows.check_patches(workspace, [own.name])
        outcome = Outcome.BAD if checked.problems else Outcome.GOOD
        step = step if checked.problems else ""
        return Trial(version=version, outcome=outcome, step=step, problems=checked.problems)
    except FactoryError as error:
        ours = isinstance(error, SetupError) or step == "row"
        outcome = Outcome.UNKNOWN if ours else Outcome.BAD
        if error.problems[0].code == NO_SOURCES:  # as of most nightly wheels
            outcome = Outcome.GOOD
        return Trial(version=version, outcome=outcome, step=step, problems=error.problems)


def _take(workspace: Workspace, cell: Cell, version: Version, view: View) -> Mapping[str, str]:
    """Write ``version`` and what it requires into the matrix; returns the axes of the cell then.

    Raises CheckFailedError if that cannot be written.
    """
    declared = matrix.load(workspace.matrix)
    alike = {axis: value for axis, value in cell.axes.items() if axis not in pins(cell)}
    for one in declared.cells:  # it may have the row already
        if one.vllm == str(version) and alike.items() <= one.axes.items():
            return one.axes
    rows = candidates.rows(declared.cells, declared.policies)
    row = next(r for r in rows if r.lead == LEAD and cell.name in [one.name for one in r.cells])
    verdict = candidates.judge(cell, LEAD, version, view, replaces=True)
    values = {LEAD: str(version), **(verdict.values if verdict else {})}
    changed = {axis: value for axis, value in values.items() if cell.axes.get(axis) != value}
    watching.update(declared, [Candidate(row=row, values=changed, replaces=True)])
    return {**cell.axes, **changed}
