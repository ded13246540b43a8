"""The walk of a night: what is new is taken over, built, verified and pushed, cell by cell.

Whatever fails stops only what depends on it. A moving tag goes to the image of its cell once that
image was pushed, which it only is after it was verified; else it stays where it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import starmap
from pathlib import Path

from imagefactory.building import context_folders
from imagefactory.errors import FactoryError
from imagefactory.nightly import branch
from imagefactory.nightly.journal import Journal, Last, begin
from imagefactory.nightly.report import markdown
from imagefactory.nightly.values import (
    Broken,
    Done,
    Found,
    Job,
    Need,
    Night,
    Row,
    State,
    Stations,
    Target,
    Targets,
    Tree,
    broken,
)
from imagefactory.system import locks
from imagefactory.workspace import Workspace

UNCOMMITTED = "files of the project have changes that no commit has, so the night did not see them"


def run(
    workspace: Workspace, job: Job, stations: Stations, publish: Callable[[Night], None]
) -> Night:
    """Walk through a night, or through what is left of one that was killed.

    ``publish`` gets the ended night before it counts as over. Raises SetupError if another process
    is at it, InputError for a matrix, lock or branch that is wrong from the start.
    """
    folder = folder_of(workspace)
    folder.mkdir(parents=True, exist_ok=True)
    with locks.claimed(folder / "lock", "another process runs the night of this project"):
        head = branch.head(workspace.project)
        key = {"to": job.to, "push": job.push, "branch": job.branch, "head": head}
        journal = begin(folder, {**key, "matrix": workspace.matrix.name}, job.now)
        if journal.resumed and not branch.is_there(folder / "tree", head):
            journal.close(None)
        if not head:
            tree = branch.copy(workspace, folder / "tree", resumed=journal.resumed)
            return _walk(job, stations, journal, tree, publish)
        made = branch.open_tree(
            workspace, folder / "tree", job.branch, partial(journal.step, "base", str)
        )
        notes = (UNCOMMITTED,) if branch.uncommitted(workspace) else ()
        night = _walk(job, stations, journal, made, publish, notes)
        branch.remove(made)
        return night


def folder_of(workspace: Workspace) -> Path:
    """The folder of a project's nights."""
    name = context_folders.of(workspace.project, workspace.settings).name
    return workspace.settings.state / "nightly" / name


def _walk(
    job: Job,
    stations: Stations,
    journal: Journal,
    tree: Tree,
    publish: Callable[[Night], None],
    notes: tuple[str, ...] = (),
) -> Night:
    walk = Walk(
        job=job, stations=stations, journal=journal, tree=tree, publish=publish, notes=notes
    )
    try:
        return walk.run()
    except FactoryError as error:
        raise _of_the_project(error, tree.workspace.project) from error


def _of_the_project(error: FactoryError, copy: Path) -> FactoryError:
    """``error`` with paths relative to the project: nobody should edit the night's copy of it."""
    return type(error)(
        replace(
            one,
            what=one.what.replace(f"{copy}/", ""),
            where=one.where and one.where.replace(f"{copy}/", ""),
        )
        for one in error.problems
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """A night.

    Attributes:
        job: what it is asked to do.
        stations: what it calls.
        journal: of its finished steps.
        tree: where it works.
        publish: gets the ended night, before it is over.
        notes: what a reader should know besides.
        clock: seconds.
    """

    job: Job
    stations: Stations
    journal: Journal
    tree: Tree
    publish: Callable[[Night], None]
    notes: tuple[str, ...] = ()
    clock: Callable[[], float] = time.monotonic

    def run(self) -> Night:
        """Walk through the night, from where an earlier run was killed."""
        workspace, stations = self.tree.workspace, self.stations
        last, began = self.journal.last(), self.clock()
        night = Night(began=self.journal.began, project=workspace.project, notes=self.notes)
        found = self.journal.step("detect", Found, partial(stations.detect, workspace))
        if found.fingerprint == last.fingerprint and not found.broken:
            self.publish(quiet := replace(night, quiet=True))
            self.journal.close(None)
            return quiet
        taken = self.journal.step("lock", Done, self._take)
        ported = self.journal.step("patches", Done, self._port)
        targets = self.journal.step("plan", Targets, self._targets)

        stopped = {*taken.stops, *ported.stops}
        ready = [one for one in targets.cells if one.cell not in stopped]
        ready.sort(key=lambda one: one.cell in last.broken)  # what broke before does not go first
        walked = self._cells(ready, began)
        tags = self._promote(targets, {one.cell for one, done in walked if not done.broken})

        unplanned = [one for one in targets.broken if one.where not in stopped]
        gone = sorted(stopped.union(one.where for one in unplanned))
        steps: list[Found | Done] = [found, taken, ported, *(done for _, done in walked), tags]
        ended = replace(
            night,
            news=found.news,
            did=(*taken.lines, *ported.lines),
            cells=(*starmap(self._row, walked), *(Row(cell=one, state="stopped") for one in gone)),
            tags=tags.lines,
            broken=(*(one for step in steps for one in step.broken), *unplanned),
            left=tuple(one.cell for one in ready if one not in dict(walked)),
            changed=self.tree.changed(),
        )
        return self._end(ended)

    def _take(self) -> Done:
        return self._written("lock", "matrix.yaml and wheels.lock", self.stations.take)

    def _port(self) -> Done:
        return self._written("patches", "patches", self.stations.patches, "patches")

    def _written(self, step: str, where: str, call: Callable[..., Done], *names: str) -> Done:
        """What a step did that writes files; one that was cut off or failed leaves none."""
        self.tree.restore(*names)
        try:
            return call(self.tree.workspace)
        except (FactoryError, OSError) as error:
            self.tree.restore(*names)
            return Done(broken=(broken(where, step, error),))

    def _targets(self) -> Targets:
        try:
            return self.stations.targets(self.tree.workspace)
        except (FactoryError, OSError) as error:
            return Targets(cells=(), broken=(broken("all cells", "plan", error),))

    def _cells(self, ready: Sequence[Target], began: float) -> list[tuple[Target, Done]]:
        """What was done for each cell, without those that the budget does not allow."""
        job, built, walked = self.job, 0, list[tuple[Target, Done]]()
        for target in ready:
            builds = target.need is Need.BUILD
            begun = f"build {target.cell}" in self.journal.steps
            is_late = job.max_minutes is not None and self.clock() - began >= job.max_minutes * 60
            is_over = job.max_cells is not None and built >= job.max_cells
            if builds and (is_over or (is_late and not begun)):
                continue
            built += builds
            walked.append((target, self._cell(target)))
        return walked

    def _cell(self, target: Target) -> Done:
        """Build, verify and push a cell, up to what fails."""
        steps = {"build": self.stations.build, "verify": self.stations.verify}
        if target.need is Need.VERIFY:
            del steps["build"]
        if self.job.push:
            steps["push"] = self.stations.push
        lines: list[str] = []
        for step, call in steps.items() if target.need is not Need.NOTHING else ():
            run = partial(self._tried, step, call, target.cell)
            done = self.journal.step(f"{step} {target.cell}", Done, run)
            lines += done.lines
            if done.broken:
                return Done(lines=tuple(lines), broken=done.broken)
        return Done(lines=tuple(lines))

    def _tried(self, step: str, call: Callable[..., str], cell: str, *more: str) -> Done:
        try:
            return Done(lines=(call(self.tree.workspace, cell, *more),))
        except (FactoryError, OSError) as error:
            return Done(broken=(broken(cell, step, error),))

    def _row(self, target: Target, done: Done) -> Row:
        state = "pushed" if self.job.push else "verified"
        if target.need is Need.NOTHING:
            state = "unchanged"
        if done.broken:
            state = f"{done.broken[0].step} failed"
        return Row(cell=target.cell, state=state, notes=done.lines)

    def _promote(self, targets: Targets, green: set[str]) -> Done:
        """Give each nightly tag to its cell, if that is green; the others stay where they are."""
        lines, failed = list[str](), list[Broken]()
        for tag, cell in targets.tags if self.job.push else ():
            if cell not in green:
                lines.append(f"`{tag}` stays where it was: {cell} is not green")
                continue
            call = partial(self._tried, f"promote {tag}", self.stations.promote, cell, tag)
            done = self.journal.step(f"promote {tag}", Done, call)
            lines += done.lines or (f"`{tag}` was not moved to {cell}",)
            failed += done.broken
        return Done(lines=tuple(lines), broken=tuple(failed))

    def _end(self, night: Night) -> Night:
        """Keep the files of the night, and what the next one compares with."""
        kept = self.journal.step("keep", Done, partial(self._keep, night))
        night = replace(night, kept=" ".join(kept.lines), broken=(*night.broken, *kept.broken))
        last = Last(broken=tuple(one.where for one in night.broken))
        if night.state is State.GREEN:
            call = partial(self.stations.detect, self.tree.workspace)
            last = Last(fingerprint=self.journal.step("settle", Found, call).fingerprint)
        self.publish(night)
        self.journal.close(last)
        return night

    def _keep(self, night: Night) -> Done:
        if not night.changed:
            return Done()
        try:
            return Done(lines=(self.tree.keep(markdown(night)),))
        except (FactoryError, OSError) as error:
            return Done(broken=(broken(self.job.branch, "branch", error),))
