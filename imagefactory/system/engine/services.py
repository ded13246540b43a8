"""Containers that go on running when this program has ended: they serve something."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from imagefactory.errors import CheckFailedError, FactoryError, fail
from imagefactory.system.engine import gpus, owner
from imagefactory.system.engine.containers import RunningContainer, new_name
from imagefactory.system.engine.docker import Part, failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A container, running or not.

    Attributes:
        id: the engine's name for it.
        name: its own.
        labels: of the container and of its image.
        image: the digest of its image, as the engine has it.
        state: Docker's word, such as ``running`` or ``exited``.
        code: the exit code of its last end.
        out_of_memory: whether the kernel killed it for its memory limit.
        health: what its health check says, such as ``healthy``; empty if it has none.
        since: when it entered its state.
    """

    id: str
    name: str
    labels: Mapping[str, str]
    image: str
    state: str
    code: int
    out_of_memory: bool
    health: str
    since: str

    @property
    def running(self) -> bool:
        """Whether its main process runs."""
        return self.state == "running"


class Services(Part):
    """What the adapter does with containers that serve."""

    def answers(self) -> str:
        """The version of the engine. Raises SetupError ``engine-failed`` if it does not answer."""
        return self._docker.must("version", "--format", "{{.Server.Version}}").strip()

    def start_service(self, arguments: Sequence[str]) -> str:
        """``docker run`` with ``arguments``, from an image that the engine has; returns the id.

        Raises CheckFailedError ``container-start`` if the container cannot be started; Docker keeps
        it then. Raises SetupError ``gpu-missing`` if it wants a GPU and the engine has none.
        """
        done = self._docker.call("run", "--pull", "never", *arguments)
        gpus.check(done)
        if not done.ok:
            said = [line for line in done.err.splitlines() if line.strip()]
            what = said[0] if said else "Docker gave no reason"
            by_hand = self._docker.show("run", *arguments)
            fix = f"start it by hand: {by_hand}"
            raise fail(CheckFailedError, "container-start", what, fix=fix)
        return done.out.strip()

    @contextmanager
    def lent(
        self, arguments: Callable[[str, Mapping[str, str]], Sequence[str]]
    ) -> Iterator[RunningContainer]:
        """A container as ``start_service`` starts it, which is removed when the block ends.

        ``arguments`` makes those of ``docker run`` from the name and the labels by which
        ``orphans`` finds it, should this process be killed.
        """
        name = new_name()
        try:
            self.start_service(arguments(name, {owner.LABEL: owner.mine()}))
            yield RunningContainer(self._docker, id=name)
        finally:  # also after a failure: Docker keeps a container that it could not start
            with suppress(FactoryError):
                self.remove_service(name)

    def services(self, label: str) -> list[Service]:
        """Containers with ``label``, which is a name or ``NAME=VALUE``, running or not."""
        only = ("--all", "--quiet", "--no-trunc", "--filter", f"label={label}")
        return self._inspect(self._docker.must("ps", *only).split())

    def service(self, name: str) -> Service | None:
        """The container of that name; None if there is none."""
        return next(iter(self._inspect([name])), None)

    def _inspect(self, names: Sequence[str]) -> list[Service]:
        """The containers of these names or ids; those that do not exist are left out."""
        if not names:
            return []
        done = self._docker.call("container", "inspect", *names)
        if not done.ok and "no such container" not in done.err.lower():
            raise failure("docker container inspect", done.err)
        return [_service(row) for row in json.loads(done.out or "[]")]

    def service_log(self, container: str, *, last: int) -> str:
        """The last lines that a container has written, also after its end; empty without one."""
        done = self._docker.call("logs", "--tail", str(last), container, join=True)
        if done.ok:
            return done.out
        if "no such container" in done.out.lower():
            return ""
        raise failure("docker logs", done.out)

    def stop_service(self, container: str) -> None:
        """Ask a container to end, and kill it after the time that it was started with; it stays."""
        self._docker.must("stop", container)

    def remove_service(self, container: str) -> None:
        """Remove a container that was stopped, or kill it first; its named volumes stay."""
        done = self._docker.call("rm", "--force", "--volumes", container)
        if not done.ok and "no such container" not in done.err.lower():
            raise failure("docker rm", done.err)


def _service(row: Mapping[str, Any]) -> Service:
    state = row["State"]
    return Service(
        id=str(row["Id"]),
        name=str(row["Name"]).removeprefix("/"),
        labels=row["Config"].get("Labels") or {},
        image=str(row["Image"]),
        state=str(state["Status"]),
        code=int(state.get("ExitCode") or 0),
        out_of_memory=state.get("OOMKilled") is True,
        health=str((state.get("Health") or {}).get("Status", "")).replace("none", ""),
        since=str(state["StartedAt"] if state["Status"] == "running" else state["FinishedAt"]),
    )
