"""Replays the year in which vLLM went from 0.16.0 to 0.33.0 as nights of an unattended project.

    python benchmarks/simulated_year.py [--since DAY] [--until DAY] [--markdown PAGE] [--json]

Every night sees PyPI as it was at 02:17 that day (past_index.py) and calls the real stations up to
the plan: what is new, candidate rows, lock by uv, patches checked on upstream's sources and ported.
Nothing is built: the images, their verification and the registry are stand-ins that always work.
In the morning a person does what the night could not (simulated_person.py). `--replay FILE` uses a
record of PyPI instead of PyPI; `--record FILE` makes one.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from unittest import mock

import past_index
import simulated_person
import simulated_report
from past_index import PastIndex
from simulated_person import BEFORE, ROOT, Person

from imagefactory import opening, pipeline
from imagefactory.locking import bases
from imagefactory.matrix import matrix
from imagefactory.nightly import nightly, stations
from imagefactory.nightly.values import Job, Need, Night, Stations, Target, Targets
from imagefactory.patching import catalog, patching
from imagefactory.patching.patch import State as PatchState
from imagefactory.patching.status import wrapped
from imagefactory.system import ui
from imagefactory.watching import others, watching
from imagefactory.workspace import Workspace

ABOUT = """\
Each night saw PyPI as it was at 02:17 UTC that day, and ran the real stations up to the plan: what
is new, candidate rows, lock by uv, patches checked on upstream's sources and ported. Nights ran
after each release of vLLM and until nothing was left to do. **Nothing was built**: images, their
verification, registry, and what Debian had then are stand-ins that always work, so a release that
does not run on a GB10 would not show here.

The project starts with the row of vLLM 0.16.0, the patches of the flavor `gb10`, and of them only
the diffs for 0.16. In the morning a person merges the branch, keeps the newest row, and does what
broke: takes the diff from today's catalogue, for instance. Proofs are those of today. PyPI's torch
for arm64 is a CPU build up to 2.10.0; until 0.19.1 the project therefore is for amd64.

The states of all patches after each night are compared with those that today's catalogue gives."""
FIRST, LAST = date(2026, 2, 27), date(2026, 11, 22)


@dataclass(kw_only=True)
class Seen:
    """A night that ran.

    Attributes:
        day: in the simulated year.
        state: how it ended.
        news: what was new.
        did: what was taken over and ported.
        broken: what broke, in one line each.
        held: why the newest vLLM is not in the matrix.
        hands: what the person did about it.
        newest: the newest release in the matrix afterwards.
        patches: what each patch is to the newest release, if that was taken over.
        wrong: patches whose state differs from the one that is known today.
        cpu, seconds: of the night.
        index: bytes that indexes sent.
        wheels: bytes of wheels that no earlier lock had.
    """

    day: str
    state: str
    news: list[str]
    did: list[str]
    broken: list[str]
    held: str
    hands: list[str]
    newest: str
    patches: dict[str, str]
    wrong: list[str]
    cpu: float
    seconds: float
    index: int
    wheels: int


@dataclass
class Year:
    """The replay.

    Attributes:
        index: the index, whose moment is the night's.
        person: the person and the project.
        images: build key of the image that each cell has in the registry.
        wheels: hashes of wheels that some lock had.
        fails: station -> the error that it ends with.
        tag: the cell that has the tag `nightly`.
    """

    index: PastIndex
    person: Person
    images: dict[str, str] = field(default_factory=dict)
    wheels: set[str] = field(default_factory=set)
    fails: dict[str, Exception] = field(default_factory=dict)
    tag: str = ""

    def night(self, now: datetime) -> Seen:
        """A night, and the morning after it."""
        self.index.now = now
        job = Job(to=None, push=True, branch="nightly", max_cells=None, max_minutes=None, now=now)
        began, cpu, sent = time.monotonic(), _cpu(), self.index.sent
        night = nightly.run(self.person.workspace, job, self._stations(job), lambda _: None)
        took, used = time.monotonic() - began, _cpu() - cpu
        held = self._held(now)
        hands = self.person.morning(night, held)
        mine, todays = self._states() if night.did or hands else ({}, {})
        return Seen(
            day=f"{now:%Y-%m-%d}",
            state=night.state.value,
            news=list(night.news),
            did=list(night.did),
            broken=[_line(night, number) for number in range(len(night.broken))],
            held=held,
            hands=hands,
            newest=self.person.newest,
            patches=mine,
            wrong=[
                f"{name}: {mine[name]}, not {now}"
                for name, now in todays.items()
                if mine[name] != now
            ],
            cpu=used,
            seconds=took,
            index=self.index.sent - sent,
            wheels=self._new_wheels(),
        )

    def _stations(self, job: Job) -> Stations:
        def build(_: Workspace, cell: str) -> str:
            self._fail("build")
            return f"{cell} was not built"

        def promote(_: Workspace, cell: str, tag: str) -> str:
            self.tag = cell
            return f"{tag} is now {cell}"

        def push(workspace: Workspace, cell: str) -> str:
            self._fail("push")
            self.images |= {name: key for name, key in _keys(workspace) if name == cell}
            return "pushed"

        def targets(workspace: Workspace) -> Targets:
            found, keys = (
                stations.targets(workspace, job=replace(job, push=False)),
                _keys(workspace),
            )
            done = {name for name, key in keys if self.images.get(name) == key}
            cells = (replace(c, need=Need.NOTHING) if c.cell in done else c for c in found.cells)
            return replace(found, cells=tuple[Target, ...](cells))

        return replace(
            stations.real(job),
            targets=targets,
            build=build,
            verify=build,
            push=push,
            promote=promote,
        )

    def _fail(self, station: str) -> None:
        if station in self.fails:
            raise self.fails[station]

    def _held(self, now: datetime) -> str:
        """Why the newest release of vLLM is not in the matrix; empty if it is."""
        workspace = self.person.workspace
        declared, lock = matrix.load(workspace.matrix), opening.read_lock(workspace)
        if lock is None:
            return ""
        rows = watching.outdated(declared, lock, workspace.settings, now).rows
        found = [row for row in rows if row.name == "vllm" and row.newest != row.current]
        return f"{found[-1].newest}: {found[-1].reason}" if found else ""

    def _states(self) -> list[dict[str, str]]:
        """What each patch is to the newest row: with its own diffs, and with those of today."""
        workspace = self.person.workspace
        declared, lock = matrix.load(workspace.matrix), opening.read_lock(workspace)
        cell, states = declared.cells[-1], []
        for folders in (workspace.patches, (ROOT / "patches",)):
            series = [(cell, catalog.series(catalog.load(*folders), cell))]
            (found,) = patching.check_series(series, (), lock, workspace.settings)
            states.append({row.patch: _word(row.state) for row in found.rows})
        return states

    def _new_wheels(self) -> int:
        lock = opening.read_lock(self.person.workspace)
        wheels = {w.sha256: w.size for w in lock.all_wheels()} if lock else {}
        new = wheels.keys() - self.wheels
        self.wheels |= new
        return sum(wheels[one] for one in new)


def _word(state: PatchState) -> str:
    """A state; why a patch is not needed makes no difference to an image."""
    if state.stops_build:
        return str(state)
    return "applied" if state.applied else "left out"


def _keys(workspace: Workspace) -> list[tuple[str, str]]:
    plans = pipeline.plan(workspace, [], allow_uncovered=True).plans
    return [(plan.cell.name, plan.build_key) for plan in plans]


def _line(night: Night, number: int) -> str:
    one = night.broken[number]
    problem = one.problems[0]
    return f"{one.where} ({one.step}): {problem.what}"


def _cpu() -> float:
    found = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in found)


def nights(
    index: PastIndex, first: date, last: date, *, every: bool
) -> Iterator[tuple[datetime, bool]]:
    """The nights, and whether there is a new vLLM since the last one.

    With ``every``, whether anything that a night reads has changed.
    """
    before: datetime | None = None
    for number in range((last - first).days + 1):
        now = moment(first + timedelta(days=number))
        yield now, before is None or index.changed(before, now, every=every)
        before = now


def moment(day: date) -> datetime:
    """When the night of a day begins."""
    return datetime.combine(day, datetime.min.time(), UTC) + timedelta(hours=2, minutes=17)


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """What the project has at first.

    Attributes:
        row: its release of vLLM with torch, FlashInfer and uv.
        target: its platform, CUDA and channel.
    """

    row: dict[str, str]
    target: dict[str, str]


BEGIN = Begin(
    row={"vllm": "0.16.0", "torch": "2.9.1", "flashinfer": "0.6.3", "uv": "0.10.6"},
    target=BEFORE,
)


@contextmanager
def opened(
    upstream: past_index.Upstream, folder: Path, first: date, begin: Begin
) -> Iterator[Year]:
    """The project on the day before its first night."""
    environ = {
        "UV_CACHE_DIR": str(folder / "uv"),
        "UV_CONCURRENT_DOWNLOADS": "8",
        "UV_HTTP_CONNECT_TIMEOUT": "120",
        "UV_HTTP_TIMEOUT": "600",
    }
    with ExitStack() as stack:
        for target, name, stub in (
            (opening, "connect_if_any", lambda _: None),  # there is no engine
            (others, "look_up", lambda *_: []),  # nor what Debian had then
            (bases, "renew", lambda renewed, *_, **__: renewed),
        ):
            stack.enter_context(mock.patch.object(target, name, stub))
        stack.enter_context(mock.patch.dict(os.environ, environ))
        index, url = stack.enter_context(past_index.serve(upstream, moment(first)))
        yield Year(index=index, person=simulated_person.start(folder, url, begin.row, begin.target))


def replay(year: Year, first: date, last: date, *, every: bool) -> Iterator[Seen]:
    """The nights that may find something new, with the mornings after them."""
    again = True
    for now, changed in nights(year.index, first, last, every=every):
        if changed or again:
            seen = year.night(now)
            ui.say(f"{seen.day} {seen.state}: vllm {seen.newest}, {seen.cpu:.0f} s")
            for line in (*seen.did, *seen.broken, *seen.hands):
                ui.say(f"  {line}")
            again = bool(seen.hands or seen.broken)
            yield seen


def page(upstream: past_index.Upstream, seen: Sequence[simulated_report.Night]) -> str:
    """The result as a page."""
    releases = past_index.releases(upstream, "vllm", moment(FIRST), moment(LAST))
    rows = simulated_report.taken(releases, seen)
    alarms = simulated_report.false_alarms(seen)
    took = sum(one["cpu"] for one in seen)
    sizes = [ui.size(sum(one[name] for one in seen)) for name in ("index", "wheels")]
    summary = (
        f"**{simulated_report.share(rows)}.** {len(seen)} nights ran, {len(alarms)} of them broke "
        f"without a reason. They took {took / 60:.0f} CPU minutes and {sizes[0]} of index pages; "
        f"builds would have downloaded {sizes[1]} of new wheels."
    )
    others = {
        name: len(past_index.releases(upstream, name, moment(FIRST), moment(LAST)))
        for name in ("flashinfer-python", "torch")
    }
    beside = (
        f"In the same time FlashInfer had {others['flashinfer-python']} releases and torch "
        f"{others['torch']}. vLLM pins both, so they were taken over with the vLLM that asks for "
        "them, and never alone."
    )
    lines = ["<!-- generated by `make simulated-year`; do not edit -->", "# A simulated year", ""]
    lines += [*wrapped(summary), "", *wrapped(beside), "", *ABOUT.splitlines(), "", "## Releases"]
    lines += ["", *simulated_report.table(rows, seen), "", "## What needed a person", ""]
    wrong = [f"- {one['day']}: {text}" for one in seen for text in one["wrong"]]
    lines += [*simulated_report.reasons(rows), *(["## Wrong states", "", *wrong] if wrong else [])]
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    """Replay, then print the share, and write what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--until", type=date.fromisoformat, default=LAST)
    parser.add_argument("--every", action="store_true", help="also nights without a new vLLM")
    parser.add_argument("--folder", type=Path, help="keeps what was read of PyPI")
    parser.add_argument("--nights", type=Path, help="JSON file; one that is there is not replayed")
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = options.folder or Path(name)
        upstream = past_index.Pypi(folder / "pypi")
        seen: list[simulated_report.Night] = []
        if options.nights and options.nights.exists():
            seen = json.loads(options.nights.read_text(encoding="utf-8"))
        else:
            year = stack.enter_context(opened(upstream, folder, FIRST, BEGIN))
            for one in replay(year, FIRST, options.until, every=options.every):
                seen.append(asdict(one))
            if options.nights:
                options.nights.write_text(json.dumps(seen, indent=1) + "\n", encoding="utf-8")
        text = page(upstream, seen)
        if options.markdown:
            options.markdown.write_text(text, encoding="utf-8")
        ui.line(next(line for line in text.splitlines() if line.startswith("**")))


if __name__ == "__main__":
    main()
