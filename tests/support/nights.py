"""A world for nights: an upstream, an engine and a registry in memory, and a project in files."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from imagefactory.errors import FactoryError, Problem
from imagefactory.nightly import nightly
from imagefactory.nightly.values import (
    Broken,
    Done,
    Found,
    Job,
    Need,
    Night,
    Stations,
    Target,
    Targets,
)
from imagefactory.settings import Settings
from imagefactory.workspace import Workspace

NOW = datetime(2026, 11, 22, 2, 17, tzinfo=UTC)
JOB = Job(to=None, push=True, branch="nightly", max_cells=None, max_minutes=None, now=NOW)
T = TypeVar("T")


class Killed(BaseException):
    """The process was killed."""


@dataclass
class World:
    """What the stations of a night find and change; it outlives the nights.

    Attributes:
        folder: for the project and the state.
        upstream: the newest release.
        fails: (station, cell) -> what happens there.
        refused: releases that cannot be locked.
        outage: what could not be looked up.
        hunk: what keeps the patch of the newest release from being ported; empty if it is ported.
        built: cell -> digest in the engine.
        verified: digests that passed.
        registry: tag -> digest.
        calls: the stations that were called and finished, with their cell.
        kill_at: the event at which the process is killed; None for never.
        events: how many there were.
        kill_at_git: the change by git after which the process is killed; 0 for never.
        git_calls: how many there were.
    """

    folder: Path
    upstream: str = "0.34.0"
    fails: dict[tuple[str, str], FactoryError | OSError] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    outage: tuple[Broken, ...] = ()
    hunk: str = ""
    built: dict[str, str] = field(default_factory=dict)
    verified: set[str] = field(default_factory=set)
    registry: dict[str, str] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    kill_at: int | None = None
    events: int = 0
    kill_at_git: int = 0
    git_calls: int = 0

    @property
    def project(self) -> Path:
        """The folder of the project."""
        return self.folder / "project"

    @property
    def workspace(self) -> Workspace:
        """The project."""
        settings = Settings(
            state=self.folder / "state",
            cache=self.folder / "cache",
            indexes=(),
            find_links=(),
            ca_bundle=None,
        )
        matrix = self.project / "matrix.yaml"
        return Workspace(matrix=matrix, project=self.project, settings=settings)

    @property
    def stations(self) -> Stations:
        """Stations that act upon this world."""
        return Stations(
            detect=self._event(self._detect),
            take=self._event(self._take),
            patches=self._event(self._patches),
            targets=self._event(self._targets),
            build=self._event(self._build),
            verify=self._event(self._verify),
            push=self._event(self._push),
            promote=self._event(self._promote),
        )

    def start(self, *, git: bool = False, rows: Sequence[str] = ("0.33.0",)) -> World:
        """Write the project, with a row for each release."""
        self.project.mkdir()
        for name in ("matrix.yaml", "wheels.lock"):
            (self.project / name).write_text("".join(f"{row}\n" for row in rows))
        if git:
            # without the samples of hooks that git writes otherwise
            self.git("init", "-q", "-b", "main", "--template=")
            with (self.project / ".git" / "config").open("a") as config:
                config.write("[user]\n\temail = me@example.org\n\tname = me\n")
            self.commit("start")
        return self

    def git(self, *argv: str) -> str:
        """Run git in the project."""
        done = subprocess.run(
            ["git", *argv], cwd=self.project, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    def commit(self, subject: str) -> None:
        """Commit everything, as a person does."""
        self.git("add", "-A")
        self.git("commit", "-q", "-m", subject)

    def night(self, job: Job = JOB) -> Night:
        """Run a night."""
        return nightly.run(self.workspace, job, self.stations, lambda _: self.event())

    def event(self) -> None:
        """Something happens, at which the process may be killed."""
        self.events += 1
        if self.events == self.kill_at:
            raise Killed

    def _event(self, station: Callable[..., T]) -> Callable[..., T]:
        name = station.__name__.removeprefix("_")

        def call(workspace: Workspace, *words: str) -> T:
            self.event()
            failure = self.fails.get((name, words[0] if words else ""))
            if failure:
                raise failure
            result = station(workspace, *words)
            self.calls.append(" ".join([name, *words]))
            self.event()
            return result

        return call

    def _detect(self, workspace: Workspace) -> Found:
        rows = _rows(workspace)
        new = () if self.upstream in rows else (f"vllm {rows[-1]} -> {self.upstream}",)
        return Found(news=new, fingerprint=" ".join([*rows, *new]), broken=self.outage)

    def _take(self, workspace: Workspace) -> Done:
        rows = _rows(workspace)
        if self.upstream in rows:
            return Done()
        if self.upstream in self.refused:
            problem = Problem(
                code="lock-no-solution",
                what=f"vllm {self.upstream} requires torch==2.15.0, which no index has",
                where=f"{workspace.matrix}:2",
                fix="wait for the wheel, or hold vllm",
            )
            row = f"row vllm {rows[-1]} -> {self.upstream}"
            return Done(broken=(Broken(where=row, step="lock", problems=(problem,)),))
        for path in (workspace.matrix, workspace.lock):
            path.write_text(f"{path.read_text()}{self.upstream}\n")
        return Done(lines=(f"row vllm {rows[-1]} -> {self.upstream}",))

    def _patches(self, workspace: Workspace) -> Done:
        cell = f"gb10-{self.upstream}"
        if self.upstream not in _rows(workspace) or cell in self.built:
            return Done()
        if self.hunk:
            problem = Problem(
                code="patch-conflict",
                what="conflict (made for 0.33.0, on 0.34.0): conflicts in vllm/config.py (1)",
                where="patches/vllm/mine/patch.yaml:3",
                fix="imagefactory patch port vllm/mine --to 0.34.0",
                detail=self.hunk,
            )
            found = Broken(where="vllm/mine on vllm 0.34.0", step="port", problems=(problem,))
            return Done(broken=(found,), stops=(cell,))
        file = workspace.own_patches / f"vllm/mine/{self.upstream}.diff"
        assert not file.exists()  # a step that was cut off leaves nothing
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("+ported\n")
        return Done(lines=(f"vllm/mine on {self.upstream}: merged, added {file.name}",))

    def _targets(self, workspace: Workspace) -> Targets:
        rows = _rows(workspace)
        return Targets(
            cells=tuple(Target(cell=f"gb10-{row}", need=self._need(row)) for row in rows),
            tags=(("nightly", f"gb10-{rows[-1]}"),),
        )

    def _need(self, row: str) -> Need:
        digest = f"sha256:{row}"
        if self.registry.get(row) == digest and digest in self.verified:
            return Need.NOTHING
        return Need.VERIFY if f"gb10-{row}" in self.built else Need.BUILD

    def _build(self, _: Workspace, cell: str) -> str:
        self.built[cell] = f"sha256:{cell.removeprefix('gb10-')}"
        return "built"

    def _verify(self, _: Workspace, cell: str) -> str:
        self.verified.add(self.built[cell])
        return "verified"

    def _push(self, _: Workspace, cell: str) -> str:
        digest = self.built[cell]
        assert digest in self.verified
        self.registry[cell.removeprefix("gb10-")] = digest
        return f"pushed {cell.removeprefix('gb10-')}"

    def _promote(self, _: Workspace, cell: str, tag: str) -> str:
        digest = self.registry[cell.removeprefix("gb10-")]
        assert digest in self.verified
        self.registry[tag] = digest
        return f"`{tag}` is now {digest}"


def _rows(workspace: Workspace) -> list[str]:
    return workspace.matrix.read_text().split()
