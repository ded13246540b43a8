"""Containers that go on running when this program has ended: they serve something."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen
from typing import Any

from imagefactory.errors import CheckFailedError, FactoryError, fail
from imagefactory.system import owner, shell, temporary
from imagefactory.system.engine import gpus
from imagefactory.system.engine.containers import RunningContainer, new_name
from imagefactory.system.engine.docker import Part, failure

_NAME_TAKEN = re.compile(r'container name "[^"]*" is already in use')
_PORT_TAKEN = re.compile(r"([\w.:\[\]]*:[0-9]+)[^\n]*(?:already allocated|address already in use)")


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

        Raises CheckFailedError ``container-start`` if the container cannot be started, with
        ``container-name`` and ``container-port`` for what is taken already; nothing is left of it.
        Raises SetupError ``gpu-missing`` if it wants a GPU and the engine has none.
        """
        words = tuple(arguments)
        name = words[words.index("--name") + 1] if "--name" in words else ""
        with temporary.folder(prefix="imagefactory-start-") as folder:
            made = folder / "id"  # Docker writes it before it starts the container
            try:
                done = self._started(words, name, made)
            except BaseException:  # Ctrl-C, too: it would be started, or have its name
                self._remove_unstarted(name, made)
                raise
            if not done.ok:
                self._remove_unstarted(name, made)
                raise _not_started(done, name, self._docker.show("run", *words))
        return done.out.strip()

    def _started(self, words: tuple[str, ...], name: str, made: Path) -> shell.Completed:
        def call(words: Sequence[str]) -> shell.Completed:
            return self._docker.call("run", "--pull", "never", "--cidfile", str(made), *words)

        def again() -> None:
            self._remove_unstarted(name, made)
            made.unlink(missing_ok=True)  # Docker writes no such file if there is one

        if (at := gpus.place(words)) is None:
            return call(words)
        before, after = words[:at], words[at + len(gpus.BY_HOOK) :]
        return gpus.run(lambda options: call([*before, *options, *after]), again)

    def _remove_unstarted(self, name: str, made: Path) -> None:
        """Remove a container that was made and is not to run; another's of its name stays."""
        with suppress(FactoryError):
            if made.is_file() and (found := made.read_text(encoding="utf-8").strip()):
                self.remove_service(found)
            elif name and (other := self.service(name)) and other.state == "created":
                self.remove_service(other.id)

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

    def service_log(self, container: str, *, last: int | None, since: str = "") -> str:
        """The last lines that a container has written, also after its end; empty without one.

        ``since`` is a time, in Docker's syntax; None is all lines.
        """
        done = self._docker.call("logs", *_lines(last, since), container, join=True)
        if done.ok:
            return done.out
        if "no such container" in done.out.lower():
            return ""
        raise failure("docker logs", done.out)

    def follow_service_log(
        self, container: str, *, last: int | None, since: str = ""
    ) -> AbstractContextManager[Popen[str]]:
        """Docker's client, which writes those lines and all that follow, until the container ends.

        It is run as by ``shell.stream``.
        """
        words = ("logs", "--follow", *_lines(last, since), container)
        return self._docker.stream(*words, env={}, quiet=True)

    def stop_service(self, container: str) -> None:
        """Ask a container to end, and kill it after the time that it was started with; it stays."""
        self._docker.must("stop", container)

    def remove_service(self, container: str) -> None:
        """Remove a container that was stopped, or kill it first; its named volumes stay."""
        done = self._docker.call("rm", "--force", "--volumes", container)
        gone = re.search(r"(?i)no such container|removal of container .* in progress", done.err)
        if not done.ok and not gone:
            raise failure("docker rm", done.err)


def _lines(last: int | None, since: str) -> list[str]:
    """Which lines of a log are wanted."""
    tail = ["--tail", str(last)] if last is not None else []
    return [*tail, *(["--since", since] if since else [])]


def _not_started(done: shell.Completed, name: str, by_hand: str) -> FactoryError:
    """The error for a container that Docker could not start."""
    said = [line for line in done.err.splitlines() if line.strip()]
    what = said[0] if said else "Docker gave no reason"
    if _NAME_TAKEN.search(done.err):
        what, fix = (
            f"there is a container {name} already",
            f"docker rm -f {name}, if it is not needed; or choose another name",
        )
        return fail(CheckFailedError, "container-name", what, fix=fix)
    if taken := _PORT_TAKEN.search(done.err):
        what = f"something else uses the port {taken[1]} of the host"
        fix = "end it, or choose another port"
        return fail(CheckFailedError, "container-port", what, fix=fix)
    return fail(CheckFailedError, "container-start", what, fix=f"start it by hand: {by_hand}")


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
