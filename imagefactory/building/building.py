"""The build station: one bake for all cells, in which the failure of one stops no other."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Self

from imagefactory.building import bakefile, disk, fleet, homes, layouts, loopback, records
from imagefactory.building.ahead import Ahead, handing
from imagefactory.building.bakefile import BakeOptions
from imagefactory.building.contexts import Contexts
from imagefactory.building.live_view import View
from imagefactory.building.progress import Event, Progress
from imagefactory.building.resend import Resend
from imagefactory.building.sites import Site
from imagefactory.building.stack import stack
from imagefactory.building.stack.stack import Stack
from imagefactory.building.timings import Timings, Took
from imagefactory.errors import FactoryError, Problem, SetupError
from imagefactory.planning.cell_plan import BaseImage, CellPlan
from imagefactory.planning.planning import Bases
from imagefactory.system import ui
from imagefactory.system.background import in_background
from imagefactory.system.engine import Engine
from imagefactory.system.platforms import Platform


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildResult:
    """How the build of one cell ended.

    Attributes:
        cell: the cell's name.
        ok: whether its image was made.
        seconds: wall time of the bake it was part of.
        log: everything its steps wrote.
        error: what failed, for ``ok=False``.
        reproduce: the command that runs only this cell's build again.
        builder: the builder that was named for it; None for the engine's own.
    """

    cell: str
    ok: bool
    seconds: float
    log: Path
    error: str
    reproduce: str
    builder: str | None = None

    @property
    def problem(self) -> Problem:
        """The failure, with its log and how to reproduce it."""
        what = f"{self.error} (log: {self.log})"
        fix = f"reproduce: {self.reproduce}"
        return Problem(code="build-failed", where=self.cell, what=what, fix=fix)

    def as_dict(self) -> dict[str, object]:
        """The result as plain JSON values."""
        return {**asdict(self), "seconds": round(self.seconds, 1), "log": str(self.log)}


def build(
    plans: Sequence[CellPlan],
    bases: Bases,
    site: Site,
    contexts: Contexts,
    options: BakeOptions,
    logs: Path,
    stopped: Callable[[], Container[str]] = tuple,
) -> list[BuildResult]:
    """Make the layers of ``plans``, and bake the images; raises the errors of a bake.

    A cell whose layers cannot be made stops no other. ``stopped`` is called while layers are made,
    and returns the cells that are not to be baked, which have no result.
    """
    _mind_the_disk(plans, site.engine, exported=options.output is None)
    stopping = in_background(stopped)
    results: list[BuildResult] = []
    with (
        _serving(site, options, contexts.folder / stack.LAYOUTS) as where,
        _ahead(site, where) as ahead,
    ):
        stacks, failed = _stacks(plans, contexts, options, logs, ahead)
        with (
            ui.step("waiting for the audit of the wheels") if not stopping.done() else nullcontext()
        ):
            left_out = stopping.result()
        ready = [one for one in plans if one.cell.name in stacks and one.cell.name not in left_out]
        if ready:
            files = _files(contexts, ready, bases, stacks, where, site)
            (first, file), *others = files.items()
            if others:
                results = _spread(site, ready, files, logs)
            else:
                results = bake(site.engine, ready, file, logs, builder=first)
        if where.loopback and not all(result.ok for result in results):
            # also for what reproduces a failure, when that registry has ended
            file = _files(contexts, ready, bases, stacks, options, site)[None]
            if any(where.loopback.is_lost(result.error) for result in results):
                results = bake(site.engine, ready, file, logs)
    for plan, result in zip(ready, results, strict=True):
        if options.output and result.ok:
            layouts.finish(layouts.folder_of(options.output, plan.cell), plan.cell.tags)
    return sorted([*results, *failed], key=lambda one: [p.cell.name for p in plans].index(one.cell))


@contextmanager
def _serving(site: Site, options: BakeOptions, layouts: Path) -> Iterator[BakeOptions]:
    """``options`` with a registry that has the layers, and takes the images that are for a folder.

    Only the engine's own builder is known to be on this machine. An engine without containerd's
    store would unpack layers that it pulls once more for the builder.
    """
    engine = site.engine
    if site.builders or not engine.shares_loopback:
        yield options
    elif options.output or engine.has_containerd_store:
        with loopback.serving(options.output or layouts) as registry:
            yield replace(options, loopback=registry)
    else:
        yield options


@contextmanager
def _ahead(site: Site, options: BakeOptions) -> Iterator[Ahead | None]:
    """Hands layers to the engine, if it is to have the images."""
    if options.loopback and not options.output:
        with handing(site.engine, options.loopback) as ahead:
            yield ahead
    else:
        yield None


def _files(
    contexts: Contexts,
    plans: Sequence[CellPlan],
    bases: Bases,
    stacks: Mapping[str, Stack],
    options: BakeOptions,
    site: Site,
) -> dict[str | None, Path]:
    """A bake file with all cells for each builder, by its name."""
    files: dict[str | None, Path] = {}
    for number, one in enumerate(site.each()):
        name = f"docker-bake-{number}.json" if number else "docker-bake.json"
        own, to = of_platform(bases, one.platform), replace(options, load=one.loads)
        files[one.builder_name] = bakefile.write_cells(contexts, plans, own, stacks, to, name)
    return files


def _spread(
    site: Site, plans: Sequence[CellPlan], files: Mapping[str | None, Path], logs: Path
) -> list[BuildResult]:
    """Build ``plans`` on all builders of ``site``, each with its own bake file."""
    tags = {plan.cell.name: plan.cell.tag for plan in plans}
    known = homes.read(logs.parent)
    queue = fleet.Queue(
        waiting=list(tags),
        homes={cell: known[tag] for cell, tag in tags.items() if tag in known},
        alive=[one.name for one in site.builders],
    )
    results: dict[str, BuildResult] = {}
    everything = Progress(targets=tuple(tags))
    kinds = {plan.cell.name: plan.cell.flavor.name for plan in plans}
    with View(everything, timings=Timings(logs.parent), kinds=kinds) as view:
        screen = Screen(view=view)

        def work(builder: str, cells: Sequence[str]) -> dict[str, str]:
            chosen = [plan for plan in plans if plan.cell.name in cells]
            file = files[builder]
            done = bake(site.engine, chosen, file, logs, builder=builder, screen=screen)
            results.update({one.cell: one for one in done})
            return {one.cell: one.error for one in done if not one.ok}

        left = fleet.spread(queue, work, site.engine.builder, screen.interrupted)
    for cell, error in left.items():
        if cell not in results:
            results[cell] = _failed(cell, logs, 0.0, error)
        results[cell] = replace(results[cell], error=error)
    return [results[cell] for cell in tags]


def _stacks(
    plans: Sequence[CellPlan],
    contexts: Contexts,
    options: BakeOptions,
    logs: Path,
    ahead: Ahead | None,
) -> tuple[dict[str, Stack], list[BuildResult]]:
    """The layers of each cell, and the results of the cells whose layers cannot be made."""
    stacks: dict[str, Stack] = {}
    failed: list[BuildResult] = []
    for plan in plans:
        began, name = time.monotonic(), plan.cell.name
        try:
            stacks[name] = stack.make(
                plan,
                contexts.folder / stack.LAYOUTS,
                contexts.settings,
                kept=options.layers,
                growing=partial(ahead.take, plan.cell) if ahead else None,
            )
        except FactoryError as error:
            said = "\n".join(map(str, error.problems))
            seconds = time.monotonic() - began
            failed.append(_failed(name, logs, seconds, error.problems[0].what, said))
    if ahead:
        ahead.wait()
    return stacks, failed


def _failed(cell: str, logs: Path, seconds: float, error: str, said: str = "") -> BuildResult:
    """The result of a cell that failed before it was baked."""
    log = _log(logs, cell)
    logs.mkdir(parents=True, exist_ok=True)
    log.write_text(f"{said or error}\n", encoding="utf-8")
    command = f"imagefactory build --matrix --select {cell}"
    return BuildResult(
        cell=cell, ok=False, seconds=seconds, log=log, error=error, reproduce=command
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """What bakes on several builders share.

    Attributes:
        view: shows all of them.
        interrupted: they have to end when it is set.
        writing: held while the files of the state folder are written.
    """

    view: View | None = None
    interrupted: threading.Event = field(default_factory=threading.Event)
    writing: threading.Lock = field(default_factory=threading.Lock)


def of_platform(bases: Bases, platform: Platform) -> dict[str, BaseImage]:
    """The bases for one platform, by name."""
    return {name: base for (name, other), base in bases.items() if other == platform}


def bake(
    engine: Engine,
    plans: Sequence[CellPlan],
    file: Path,
    logs: Path,
    *,
    builder: str | None = None,
    screen: Screen | None = None,
) -> list[BuildResult]:
    """Build ``plans`` in one bake, and again without those that failed until none is left.

    ``builder`` is a buildx builder, the engine's own if it is None; ``screen`` is for bakes on
    several builders. Bake cancels every target at
    the first error, but finished steps stay in the cache for the next round.
    """
    logs.mkdir(parents=True, exist_ok=True)
    left = {plan.cell.name: plan for plan in plans}
    results: list[BuildResult] = []
    resend = Resend(file, None if builder else engine)
    while left:
        began = time.monotonic()
        code, progress = _round(engine, left, file, logs, builder, screen or Screen())
        if code and resend.helps(progress.failed().values()):
            continue
        failed = _blame(left, progress) if code else {}
        ended = set(left) if not code else set(failed) or set(left)
        for name in [name for name in left if name in ended]:
            del left[name]
            results.append(
                BuildResult(
                    cell=name,
                    ok=code == 0,
                    seconds=time.monotonic() - began,
                    log=_log(logs, name),
                    error=failed.get(name, "" if code == 0 else _last(progress)),
                    reproduce=engine.bake_command(file, [name], builder=builder),
                    builder=builder,
                )
            )
        if left:
            ui.say(f"continuing with {', '.join(left)}")
    resend.end()
    return sorted(results, key=lambda result: [plan.cell.name for plan in plans].index(result.cell))


def _mind_the_disk(plans: Sequence[CellPlan], engine: Engine, *, exported: bool) -> None:
    """Warn if the build may not fit the disk; raise SetupError if it cannot."""
    needs = disk.ENGINE if exported else disk.FOLDER
    problem = disk.judge(plans, disk.free(engine.data_root), needs)
    if problem and problem.code == "disk-full":
        raise SetupError(problem)
    if problem:
        ui.warn(f"{problem.what}: {problem.fix}")


def _log(logs: Path, name: str) -> Path:
    return logs / f"{name}.log"


def _round(
    engine: Engine,
    plans: Mapping[str, CellPlan],
    file: Path,
    logs: Path,
    builder: str | None,
    screen: Screen,
) -> tuple[int, Progress]:
    """Bake the cells of ``plans`` once."""
    kinds = {name: plan.cell.flavor.name for name, plan in plans.items()}
    names, timings = tuple(kinds), Timings(logs.parent)
    progress = Progress(targets=names)
    if screen.view:
        screen.view.follow(progress)
    own = nullcontext(screen.view) if screen.view else View(progress, timings=timings, kinds=kinds)
    with _Logs({name: _log(logs, name) for name in names}) as files, own as view:

        def read(line: str) -> None:
            if screen.interrupted.is_set():
                raise InterruptedError
            for event in progress.feed(line):
                files.write(event)
                view.feed(event)

        metadata = _metadata(logs, builder)
        code = engine.bake(
            file,
            names,
            on_line=read,
            builder=builder,
            metadata=metadata,
        )
        for line in progress.stray if code else ():
            files.write(Event(None, line))
    if code == 0:
        with screen.writing:
            timings.add(_took(kinds, progress))
            for name, digests in records.of_bake(metadata).items():
                if name in plans:
                    records.add(logs.parent / records.FOLDER, plans[name].build_key, digests)
            if builder:
                homes.add(logs.parent, [plan.cell.tag for plan in plans.values()], builder)
    return code, progress


def _metadata(logs: Path, builder: str | None) -> Path:
    """The file that one bake writes its digests to; what another one wrote there is removed."""
    path = logs / f".metadata-{os.getpid()}{f'-{builder}' if builder else ''}.json"
    path.unlink(missing_ok=True)
    return path


def _took(kinds: Mapping[str, str], progress: Progress) -> Iterator[Took]:
    for name, kind in kinds.items():
        tally = progress.tallies[name]
        if tally.seconds is not None:
            yield Took(what=kind, warm=tally.warm, seconds=tally.seconds)


def _blame(left: Mapping[str, CellPlan], progress: Progress) -> dict[str, str]:
    """Cell -> error; the failure of a shared base is the failure of every cell on it."""
    blamed = {}
    for target, error in progress.failed().items():
        for name, plan in left.items():
            base = plan.cell.flavor.base.name
            if target == name or target.startswith(f"builder-{base}-"):
                blamed[name] = error
    return blamed


def _last(progress: Progress) -> str:
    return " / ".join(line for line in progress.stray[-3:]) or "bake failed without a message"


class _Logs:
    """A log file for each cell; what belongs to no cell (shared stages) goes into all of them."""

    def __init__(self, paths: Mapping[str, Path]) -> None:
        self._files = {name: path.open("w", encoding="utf-8") for name, path in paths.items()}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()

    def write(self, event: Event) -> None:
        for file in (
            [self._files[event.target]] if event.target in self._files else self._files.values()
        ):
            file.write(f"{event.target or ''}: {event.text}\n")
