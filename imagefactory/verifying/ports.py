"""What verify asks of a container engine; the engine's adapter offers it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from imagefactory.system.shell import Completed


class ImageInfo(Protocol):
    """An image as the engine describes it."""

    @property
    def ref(self) -> str:
        """The reference that was asked for."""

    @property
    def digest(self) -> str:
        """``sha256:...``, of the manifest or index."""

    @property
    def platform(self) -> str:
        """OCI platform, such as ``linux/arm64``."""

    @property
    def labels(self) -> Mapping[str, str]:
        """The image's labels."""


class RunningContainer(Protocol):
    """A container that was started and not waited for."""

    @property
    def id(self) -> str:
        """The engine's name for it."""

    @property
    def host_port(self) -> int:
        """Port on the host's loopback address where the published port answers."""

    def logs(self) -> str:
        """What it wrote so far, both streams, also after its end."""

    def alive(self) -> bool:
        """Whether its main process still runs."""

    def stop(self, timeout: float) -> int:
        """Ask it to end (SIGTERM), kill it after ``timeout`` seconds (137).

        Returns the exit code.
        """

    def remove(self) -> None:
        """Remove it, running or not."""


class Engine(Protocol):
    """The part of a container engine that verify uses."""

    def inspect_image(self, ref: str) -> ImageInfo:
        """Describe a local image; SetupError if it is not there."""

    def run(
        self,
        image: str,
        argv: Sequence[str],
        *,
        platform: str,
        env: Mapping[str, str] = ...,
        entrypoint: str | None = None,
        stdin: str | None = None,
        network: str | None = None,
        timeout: float,
        mounts: Sequence[tuple[Path, str]] = (),
        shm_size: str | None = None,
    ) -> Completed:
        """Run a container to its end and remove it.

        SetupError ``command-timeout`` if it does not end in time.
        """

    def start(
        self,
        image: str,
        argv: Sequence[str],
        *,
        platform: str,
        env: Mapping[str, str],
        mounts: Sequence[tuple[Path, str]],
        publish: int,
        shm_size: str,
    ) -> RunningContainer:
        """Start a container with ``publish`` reachable on the host's loopback address.

        Each mount is a folder that the container only reads: where a bind mount is impossible (an
        engine on another machine) it is copied in before the start.
        """
