"""How Docker is called: its CLI through the one gateway, and python-on-whales.

python-on-whales does the work wherever it can. It lacks standard input for a container that is
waited for, BuildKit's raw progress, one look-up for a hundred images, the history of an image, the
logs of both streams in order and the build cache; ``container.stop`` of 0.81 drops the seconds that
it is given. All of that goes through the CLI.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from subprocess import Popen
from typing import IO, TYPE_CHECKING

from imagefactory.errors import CheckFailedError, FactoryError, SetupError, fail
from imagefactory.system import shell
from imagefactory.system.processes import signal_name

if TYPE_CHECKING:
    from python_on_whales import DockerClient


#: Docker's client starts ssh, which would ask for a password on the terminal and wait.
_NO_PASSWORDS = {"SSH_ASKPASS": "/bin/false", "SSH_ASKPASS_REQUIRE": "force"}


class Docker:
    """The clients of one engine.

    ``binary`` is the program, ``host`` the engine's address and ``config`` the folder of the
    client's configuration; Docker's own defaults apply to what is None. ``timeout`` is for calls
    that have no limit of their own.
    """

    def __init__(
        self,
        *,
        binary: str = "docker",
        host: str | None = None,
        config: str | None = None,
        timeout: float | None = None,
    ) -> None:
        self._timeout = timeout
        self._argv = (
            binary,
            *(("--config", config) if config else ()),
            *(("--host", host) if host else ()),
        )
        self._options = {"client_call": [binary], "config": config, "host": host}
        #: For programs that call docker by themselves: Buildx, and the project's scripts.
        self.environment: dict[str, str] = {
            **({"DOCKER_HOST": host} if host else {}),
            **(_NO_PASSWORDS if (host or "").startswith("ssh://") else {}),
            **({"DOCKER_CONFIG": config} if config else {}),
        }

    def show(self, *words: str) -> str:
        """The command line of ``call`` as a line that can be pasted into a shell."""
        return shell.show([*self._argv, *words])

    def call(
        self,
        *words: str,
        stdin: str | None = None,
        timeout: float | None = None,
        quiet: bool = True,
        join: bool = False,
        most: int | None = None,
    ) -> shell.Completed:
        """``docker words...``; parameters, result and errors are those of ``shell.run``.

        Raises SetupError ``engine-failed`` if a signal killed the client.
        """
        done = shell.run(
            [*self._argv, *words],
            env=self.environment,
            stdin=stdin,
            timeout=timeout or self._timeout,
            quiet=quiet,
            join=join,
            most=most,
        )
        if not done.cut:
            mind_the_client(done.code, f"docker {words[0]}")
        return done

    def must(self, *words: str, image: str | None = None, quiet: bool = True) -> str:
        """What ``docker words...`` writes; ``image`` is the image that it is about, if any.

        Raises the error of ``failure`` if it fails.
        """
        done = self.call(*words, quiet=quiet)
        if not done.ok:
            raise failure(f"docker {words[0]}", done.err or done.out, image)
        return done.out

    def stream(
        self, *words: str, env: Mapping[str, str], quiet: bool = False
    ) -> AbstractContextManager[Popen[str]]:
        """``docker words...`` as ``shell.stream`` runs it, with ``env`` added."""
        return shell.stream([*self._argv, *words], env={**self.environment, **env}, quiet=quiet)

    def pipe(self, *words: str) -> AbstractContextManager[IO[bytes]]:
        """What ``docker words...`` writes, as a stream of bytes."""
        return shell.pipe([*self._argv, *words], env=self.environment)

    def attach(self, connection: int, *words: str) -> Popen[bytes]:
        """``docker words...`` in the background, talking over the file descriptor."""
        return shell.attach([*self._argv, *words], connection, env=self.environment)

    @cached_property
    def _client(self) -> DockerClient:
        # the import takes a quarter of a second: only for commands that use it
        from python_on_whales import DockerClient  # noqa: PLC0415

        return DockerClient(**self._options)  # type: ignore[arg-type]

    @contextmanager
    def whales(self, doing: str, *, image: str | None = None) -> Iterator[DockerClient]:
        """The client of python-on-whales; what it raises becomes the error of ``failure``.

        ``doing`` says what is tried, ``image`` is the image that it is about, if any.
        """
        from python_on_whales.client_config import (  # noqa: PLC0415 - as above
            ClientNotFoundError,
            ParsingError,
        )
        from python_on_whales.exceptions import DockerException  # noqa: PLC0415

        try:
            yield self._client
        except DockerException as error:
            raise failure(doing, error.stderr or str(error), image) from None
        except (ClientNotFoundError, ParsingError) as error:
            raise failure(doing, str(error)) from None


class GoneError(SetupError):
    """An image or container that does not exist, or no longer."""


def failure(doing: str, said: str, image: str | None = None) -> FactoryError:
    """The error for what the engine refused; ``said`` is what Docker's client wrote.

    If an image does not exist that is CheckFailedError ``image-missing`` for the one named
    ``image``. Otherwise it is SetupError ``engine-failed``: GoneError for what does not exist.
    """
    low = said.lower()
    if image is not None and "no such image" in low:
        return fail(
            CheckFailedError,
            "image-missing",
            f"the engine has no image {image}",
            fix="imagefactory plan lists the tags; imagefactory build --matrix makes them",
        )
    kind = GoneError if "no such image" in low or "no such container" in low else SetupError
    # what ssh said is the end of a long sentence about the URL of the engine
    said = said.rpartition(" stderr=")[2]
    last = said.strip().splitlines()[-1:] or ["Docker gave no reason"]
    return fail(kind, "engine-failed", f"{doing}: {last[0]}", fix="imagefactory doctor")


def mind_the_client(code: int, doing: str) -> None:
    """Raise SetupError ``engine-failed`` if ``code`` says that a signal killed Docker's client.

    A killed client says nothing about the image that it was used on.
    """
    if code < 0:
        what = f"{doing}: Docker's client was killed by {signal_name(-code)}"
        fix = "try again; imagefactory doctor, and the kernel's log (out of memory?), may say why"
        raise fail(SetupError, "engine-failed", what, fix=fix)


#: What Docker's client exits with if the engine failed, and not the program in the container.
_ENGINE_EXIT = 125
#: Failures with that code that are the image's: it asks for what it does not have, or for nothing.
_OF_THE_IMAGE = re.compile(
    r"unable to find (user|group)|no matching entries in (passwd|group)|no command specified"
)


def check_ran(done: shell.Completed, image: str) -> None:
    """Raise the error of ``failure`` for a ``docker run`` that the engine failed to do.

    No space to unpack the image, or no daemon: neither says anything about the image.
    """
    by_docker = re.search(r"(?im)^(docker:|error)", done.err)
    if done.code != _ENGINE_EXIT or not by_docker or _OF_THE_IMAGE.search(done.err):
        return
    raise failure("docker run", said_by_docker(done), image)


def said_by_docker(done: shell.Completed) -> str:
    """What ``docker run`` wrote, without its hints at help."""
    lines = [line for line in done.err.splitlines() if line.strip()]
    return "\n".join(line for line in lines if not line.startswith(("See ", "Run '")))


class Part:
    """A part of the engine's adapter; all parts share one client."""

    def __init__(self, docker: Docker) -> None:
        self._docker = docker
