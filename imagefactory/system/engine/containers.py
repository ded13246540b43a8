"""Containers: run to their end, started in the background, or made to read their files.

All are confined: an image is run before it is known to be good.
"""

from __future__ import annotations

import io
import re
import secrets
import socket
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from imagefactory.errors import CheckFailedError, SetupError, fail
from imagefactory.system import owner, platforms, processes, shell, temporary
from imagefactory.system.engine.docker import (
    Docker,
    GoneError,
    Part,
    check_ran,
    failure,
)
from imagefactory.system.engine.gpus import run as run_with_gpus

GIB = 1 << 30
#: The names of our containers. An image can set labels of its containers, but not their names.
_NAME = re.compile(r"imagefactory-[0-9a-f]{12}")
#: Bytes that are read of a log, or of what a container writes.
MOST_OUTPUT = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a container may take: bytes of memory, none of it swapped out, and processes."""

    memory: int = 8 * GIB
    processes: int = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerMemory:
    """A running container, and the bytes of memory that the kernel counts for it."""

    id: str
    name: str
    bytes: int


class RunningContainer:
    """A container that was started in the background; ``id`` is the engine's name for it."""

    def __init__(self, docker: Docker, *, id: str) -> None:  # noqa: A002
        self._docker = docker
        self.id = id

    def logs(self, *, last: int | None = None, most: int = MOST_OUTPUT) -> str:
        """What it has written so far, also after its end; the first ``most`` bytes at most.

        ``last`` leaves out all but so many lines at the end.
        """
        tail = () if last is None else ("--tail", str(last))
        # one stream for both, so that lines stay in the order in which they were written
        return self._docker.call("logs", *tail, self.id, join=True, most=most).out

    def alive(self) -> bool:
        """Whether its main process runs. Raises SetupError if the engine does not answer."""
        try:
            with self._docker.whales(f"inspecting {self.id}") as client:
                return client.container.inspect(self.id).state.running is True
        except GoneError:
            return False

    def exit_code(self) -> int:
        """What its main process exited with; 0 while it runs."""
        with self._docker.whales(f"inspecting {self.id}") as client:
            return client.container.inspect(self.id).state.exit_code or 0

    def ran_out_of_memory(self) -> bool:
        """Whether the kernel killed a process of it because of the memory limit."""
        with self._docker.whales(f"inspecting {self.id}") as client:
            return client.container.inspect(self.id).state.oom_killed is True

    @contextmanager
    def attach(self, argv: Sequence[str]) -> Iterator[socket.socket]:
        """A socket that is the standard input and output of ``argv``, run in the container.

        It ends with the block, as it ends when the program does.
        """
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                process = self._docker.attach(
                    theirs.fileno(), "exec", "--interactive", self.id, *argv
                )
            try:
                yield ours
            finally:
                processes.end(process)

    def stop(self, timeout: float) -> int:
        """Ask it to end (SIGTERM) and kill it after ``timeout`` seconds.

        Returns the exit code of its main process; 137 if that was killed.
        """
        self._docker.must("stop", "--time", str(int(timeout)), self.id)
        with self._docker.whales(f"waiting for {self.id}") as client:
            return client.container.wait(self.id)

    def remove(self) -> None:
        """Remove it, running or not, with its anonymous volumes."""
        _remove(self._docker, self.id)


class Containers(Part):
    """What the adapter does with containers."""

    def run(
        self,
        image: str,
        argv: Sequence[str],
        *,
        platform: str,
        timeout: float,
        env: Mapping[str, str] | None = None,
        entrypoint: str | None = None,
        stdin: str | None = None,
        network: str | None = None,
        mounts: Sequence[tuple[Path, str]] = (),
        volumes: Sequence[tuple[str, str]] = (),
        shm_size: str | None = None,
        limits: Limits = Limits(),
        most: int = MOST_OUTPUT,
        gpus: bool = False,
    ) -> shell.Completed:
        """Run a container of ``image`` to its end and remove it; the exit code is the caller's.

        Each of ``mounts`` is a file or folder of the engine's machine and the path where the
        container reads it; it cannot write there. Each of ``volumes`` is a named volume of the
        engine and the path where the container reads and writes it. A container that writes more
        than ``most`` bytes is ended; ``gpus`` gives it all of the machine's.

        Raises SetupError ``command-timeout`` if it does not end
        within ``timeout`` seconds, ``engine-failed`` if the engine fails to run it.
        """
        name = new_name()
        options = [
            *("--rm", "--name", name, "--pull", "never", "--platform", platform),
            "--no-healthcheck",
            *("--log-driver", "none"),  # what it writes goes to us, not to the engine's disk
            *_confined(limits),
            *(("--interactive",) if stdin is not None else ()),
            *(("--entrypoint", entrypoint) if entrypoint else ()),
            *(("--network", network) if network else ()),
            *(("--shm-size", shm_size) if shm_size else ()),
            *_environment({**_emulation(platform), **(env or {})}),
        ]
        bound = [*_read_only(mounts), *volumes]
        options += [word for item in bound for word in ("--volume", ":".join(item))]
        try:
            done = self._run(
                (*options, image, *argv),
                name if gpus else None,
                stdin=stdin,
                timeout=timeout,
                most=most,
            )
            check_ran(done, image)
        except BaseException:  # a container outlives its client: remove it on a timeout or Ctrl-C
            _remove(self._docker, name)
            raise
        if done.cut:
            _remove(self._docker, name)
        return done

    def start(
        self,
        image: str,
        argv: Sequence[str],
        *,
        platform: str,
        env: Mapping[str, str] | None = None,
        mounts: Sequence[tuple[Path, str]] = (),
        volumes: Sequence[tuple[str, str]] = (),
        shm_size: str | None = None,
        limits: Limits = Limits(),
        gpus: bool = False,
        network: str = "none",
        alias: str | None = None,
    ) -> RunningContainer:
        """Start a container of ``image`` in the background, with a loopback network alone.

        ``mounts``, ``volumes`` and ``gpus`` are as for ``run``. ``network`` is one of
        ``Engine.network``, where other containers find it as ``alias``, too.

        Raises CheckFailedError ``container-start`` if the image cannot be started, SetupError
        ``engine-failed`` if the engine fails to start it.
        """
        name = new_name()
        options = [
            *("--detach", "--name", name, "--pull", "never", "--platform", platform),
            "--no-healthcheck",  # it is asked anyway, and every start of a program takes time
            # a log of bounded size, which can be read
            *("--log-driver", "local", "--log-opt", f"max-size={MOST_OUTPUT // 2}"),
            *("--log-opt", "max-file=2", "--network", network),
            *(("--network-alias", alias) if alias else ()),
            *_confined(limits),
            *(("--shm-size", shm_size) if shm_size else ()),
            *_environment(env or {}),
        ]
        bound = [*_read_only(mounts), *volumes]
        options += [word for item in bound for word in ("--volume", ":".join(item))]
        try:
            done = self._run((*options, image, *argv), name if gpus else None)
            check_ran(done, image)
        except BaseException:
            _remove(self._docker, name)
            raise
        if done.ok:
            return RunningContainer(self._docker, id=name)
        _remove(self._docker, name)  # Docker keeps a container that it could not start
        if "no such image" in done.err.lower():
            raise failure("docker run", done.err, image)
        last = (done.err or done.out).strip().splitlines()[-1:] or ["Docker gave no reason"]
        by_hand = self._docker.show("run", "--rm", "--platform", platform, image, *argv)
        what, fix = f"{image} does not start: {last[0]}", f"start it by hand: {by_hand}"
        raise fail(CheckFailedError, "container-start", what, fix=fix)

    def _run(self, words: Sequence[str], with_gpus: str | None, **how: Any) -> shell.Completed:
        """``docker run``; ``with_gpus`` is the name of a container that gets all GPUs."""

        def call(more: Sequence[str] = ()) -> shell.Completed:
            return self._docker.call("run", *more, *words, quiet=False, **how)

        if with_gpus is None:
            return call()
        return run_with_gpus(call, lambda: _remove(self._docker, with_gpus))

    def orphans(self) -> list[str]:
        """Ids of our containers whose owner, a process of imagefactory, has ended."""
        options = ("--all", "--no-trunc", "--filter", f"label={owner.LABEL}")
        shown = ("--format", f'{{{{.ID}}}}\t{{{{.Names}}}}\t{{{{.Label "{owner.LABEL}"}}}}')
        listed = self._docker.must("ps", *options, *shown)
        rows = [line.split("\t") for line in listed.splitlines() if line.count("\t") == 2]
        return [found for found, name, owned in rows if _NAME.fullmatch(name) and owner.gone(owned)]

    def remove_container(self, container: str) -> None:
        """Remove a container, running or not, with its anonymous volumes; as far as possible."""
        _remove(self._docker, container)

    @contextmanager
    def created(self, image: str, *options: str) -> Iterator[str]:
        """A container of ``image`` that is never started; gives its id, removes it afterwards.

        ``options`` are further ones of ``docker create``.
        Raises CheckFailedError ``image-missing`` if there is no such image.
        """
        name = new_name()
        label = ("--label", f"{owner.LABEL}={owner.mine()}")
        try:
            # an image without a command needs one to be given; it is not run
            made = self._docker.must(
                *("create", "--name", name, "--pull", "never", *label, *options),
                *(image, "true"),
                image=image,
            )
            yield made.strip()
        finally:
            _remove(self._docker, name)

    def fill_volume(self, name: str, image: str, files: Mapping[str, str]) -> None:
        """Put text files into a named volume, which is made if need be; ``image`` is not run.

        Raises CheckFailedError ``image-missing``, SetupError if the engine fails.
        """
        written = io.BytesIO()
        with tarfile.open(fileobj=written, mode="w") as archive:
            for path, text in files.items():
                data = text.encode()
                entry = tarfile.TarInfo(path)
                entry.size = len(data)
                archive.addfile(entry, io.BytesIO(data))
        with self.created(image, "--volume", f"{name}:/volume") as made:
            done = self._docker.call(
                "cp", "-", f"{made}:/volume", stdin=written.getvalue().decode()
            )
            if not done.ok:
                raise failure(f"filling the volume {name}", done.err)

    def read_file(self, image: str, path: str) -> str | None:
        """The text of a file inside an image, None if the image has no such file.

        Nothing of the image is run. Raises CheckFailedError ``image-missing``, SetupError if the
        engine fails.
        """
        with self.created(image) as made, temporary.folder(prefix="imagefactory-file-") as folder:
            target = folder / "file"
            done = self._docker.call("cp", f"{made}:{path}", str(target))
            if not done.ok and not re.search(r"(?i)could not find the file|no such file", done.err):
                raise failure(f"reading {path} of {image}", done.err)
            return target.read_text(encoding="utf-8") if target.is_file() else None

    @contextmanager
    def folder(self, image: str, path: str) -> Iterator[IO[bytes]]:
        """The files below a folder of an image as one tar stream; nothing of the image is run.

        Raises CheckFailedError ``image-missing``, SetupError if there is no such folder.
        """
        with self.created(image) as made, self._docker.pipe("cp", f"{made}:{path}", "-") as stream:
            yield stream

    @contextmanager
    def export(self, image: str) -> Iterator[IO[bytes]]:
        """All files of an image as one tar stream; nothing of the image is run.

        Raises CheckFailedError ``image-missing``.
        """
        with self.created(image) as made, self._docker.pipe("export", made) as stream:
            yield stream

    def used_images(self) -> set[str]:
        """Digests of the images that containers, running or not, were made from."""
        used = set()
        with self._docker.whales("listing containers") as client:
            listed = client.container.list(all=True)
        for container in listed:
            with suppress(GoneError), self._docker.whales(f"inspecting {container.id}"):
                used.add(container.image)
        return used

    def publishing(self, port: int) -> tuple[str, str] | None:
        """Name and digest of the image of the container that publishes ``port``, if one does."""
        with self._docker.whales("listing containers") as client:
            listed = client.container.list(filters=[("publish", str(port))])
        for container in listed:
            with suppress(GoneError), self._docker.whales(f"inspecting {container.id}"):
                return container.config.image or container.image, container.image
        return None

    def memory_in_use(self) -> list[ContainerMemory]:
        """What running containers hold; rounded by Docker, and without what CUDA allocates."""
        shown = ("--format", "{{.ID}}\t{{.Name}}\t{{.MemUsage}}")
        listed = self._docker.must("stats", "--no-stream", "--no-trunc", *shown)
        rows = [line.split("\t") for line in listed.splitlines() if line.count("\t") == 2]
        return [ContainerMemory(id=one, name=name, bytes=_size(used)) for one, name, used in rows]

    def remove_volume(self, name: str) -> None:
        """Remove a named volume and what it holds; one that does not exist is fine."""
        self._docker.must("volume", "rm", "--force", name)


def _size(shown: str) -> int:
    """Bytes of the first size in Docker's ``1.944GiB / 119.6GiB``."""
    found = re.match(r"([\d.]+)([KMGT]?)i?B", shown)
    return int(float(found[1]) * 1024 ** " KMGT".index(found[2] or " ")) if found else 0


def _confined(limits: Limits) -> list[str]:
    """Options that let a container do no more than it has to, and say whose it is."""
    return [
        *("--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
        *("--memory", str(limits.memory), "--memory-swap", str(limits.memory)),
        *("--pids-limit", str(limits.processes)),
        *("--label", f"{owner.LABEL}={owner.mine()}"),
    ]


def _emulation(platform: str) -> dict[str, str]:
    found = platforms.parse(platform)
    return found.emulation if found else {}


def _environment(env: Mapping[str, str]) -> list[str]:
    return [word for item in env.items() for word in ("--env", "=".join(item))]


def _remove(docker: Docker, container: str) -> None:
    """Remove a container as well as possible: it is the last thing to do, after errors too."""
    with suppress(SetupError), docker.whales(f"removing {container}") as client:
        client.container.remove(container, force=True, volumes=True)


def _read_only(mounts: Sequence[tuple[Path, str]]) -> list[tuple[str, str, str]]:
    return [(str(path), inside, "ro") for path, inside in mounts]


def new_name() -> str:
    """A name by which ``orphans`` knows that a container is ours."""
    return f"imagefactory-{secrets.token_hex(6)}"
