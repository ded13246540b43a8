"""Containers: run to their end, started in the background, or made to read their files."""

from __future__ import annotations

import secrets
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from imagefactory.errors import CheckFailedError, SetupError, fail
from imagefactory.system import shell
from imagefactory.system.engine.docker import Docker, GoneError, Part


class RunningContainer:
    """A container that was started in the background.

    ``id`` is the engine's name for it, ``host_port`` the port on 127.0.0.1 where its published port
    answers.
    """

    def __init__(self, docker: Docker, *, id: str, host_port: int) -> None:  # noqa: A002
        self._docker = docker
        self.id = id
        self.host_port = host_port

    def logs(self) -> str:
        """Everything that it has written so far, also after its end."""
        # one stream for both, so that lines stay in the order in which they were written
        return self._docker.call("logs", self.id, join=True).out

    def alive(self) -> bool:
        """Whether its main process runs."""
        try:
            with self._docker.whales(f"inspecting {self.id}") as client:
                return client.container.inspect(self.id).state.running is True
        except GoneError:
            return False

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
    ) -> shell.Completed:
        """Run a container of ``image`` to its end and remove it; the exit code is the caller's.

        Each of ``mounts`` is a file or folder of the engine's machine and the path where the
        container reads it; it cannot write there. Each of ``volumes`` is a named volume of the
        engine and the path where the container reads and writes it. Raises SetupError
        ``command-timeout`` if it does not end within ``timeout`` seconds.
        """
        name = _new_name()
        options = [
            *("--rm", "--name", name, "--pull", "never", "--platform", platform),
            *(("--interactive",) if stdin is not None else ()),
            *(("--entrypoint", entrypoint) if entrypoint else ()),
            *(("--network", network) if network else ()),
            *(("--shm-size", shm_size) if shm_size else ()),
        ]
        options += [word for item in (env or {}).items() for word in ("--env", "=".join(item))]
        bound = [*_read_only(mounts), *volumes]
        options += [word for item in bound for word in ("--volume", ":".join(item))]
        try:
            return self._docker.call(
                "run", *options, image, *argv, stdin=stdin, timeout=timeout, quiet=False
            )
        except BaseException:  # a container outlives its client: remove it on a timeout or Ctrl-C
            _remove(self._docker, name)
            raise

    def start(
        self,
        image: str,
        argv: Sequence[str],
        *,
        platform: str,
        publish: int,
        env: Mapping[str, str] | None = None,
        mounts: Sequence[tuple[Path, str]] = (),
        shm_size: str | None = None,
    ) -> RunningContainer:
        """Start a container of ``image`` in the background.

        Its port ``publish`` is reachable on a free loopback port of the engine's machine;
        ``mounts`` are as for ``run``. Raises CheckFailedError ``image-missing`` or
        ``container-start``.
        """
        port, name = _free_port(), _new_name()
        try:
            with self._docker.whales("docker run", image=image) as client:
                made = client.container.run(
                    image,
                    list(argv),
                    detach=True,
                    name=name,
                    pull="never",
                    platform=platform,
                    publish=[(f"127.0.0.1:{port}", publish)],
                    envs=env or {},
                    volumes=_read_only(mounts),
                    shm_size=shm_size,
                )
        except BaseException as error:  # Docker keeps a container that it could not start
            _remove(self._docker, name)
            if not isinstance(error, SetupError):
                raise
            what = f"{image} does not start: {error.problems[0].what}"
            by_hand = self._docker.show("run", "--rm", "--platform", platform, image, *argv)
            raise fail(
                CheckFailedError, "container-start", what, fix=f"start it by hand: {by_hand}"
            ) from None
        return RunningContainer(self._docker, id=made.id, host_port=port)

    @contextmanager
    def created(self, image: str) -> Iterator[str]:
        """A container of ``image`` that is never started; gives its id, removes it afterwards.

        Raises CheckFailedError ``image-missing`` if there is no such image.
        """
        name = _new_name()
        # an image without a command needs one to be given; it is not run
        made = self._docker.must(
            "create", "--name", name, "--pull", "never", image, "true", image=image
        )
        try:
            yield made.strip()
        finally:
            _remove(self._docker, name)

    def read_file(self, image: str, path: str) -> str | None:
        """The text of a file inside an image, None if the image has no such file.

        Nothing of the image is run. Raises CheckFailedError ``image-missing``.
        """
        with self.created(image) as made, tempfile.TemporaryDirectory() as folder:
            target = Path(folder) / "file"
            self._docker.call("cp", f"{made}:{path}", str(target))
            return target.read_text(encoding="utf-8") if target.is_file() else None

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

    def remove_volume(self, name: str) -> None:
        """Remove a named volume and what it holds; one that does not exist is fine."""
        self._docker.must("volume", "rm", "--force", name)


def _remove(docker: Docker, container: str) -> None:
    """Remove a container as well as possible: it is the last thing to do, after errors too."""
    with suppress(SetupError), docker.whales(f"removing {container}") as client:
        client.container.remove(container, force=True, volumes=True)


def _read_only(mounts: Sequence[tuple[Path, str]]) -> list[tuple[str, str, str]]:
    return [(str(path), inside, "ro") for path, inside in mounts]


def _new_name() -> str:
    return f"imagefactory-{secrets.token_hex(6)}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
