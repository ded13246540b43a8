"""A launch as ``docker run``. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from imagefactory.launching.launching import Launch

Option = tuple[str, ...]


def arguments(launch: Launch) -> list[str]:
    """What follows ``docker run``."""
    options = (word for option in _options(launch) for word in option)
    return [*options, launch.image, *launch.command]


def words(launch: Launch) -> list[str]:
    """The whole command, for a program that starts the container itself."""
    return ["docker", "run", *arguments(launch)]


def text(launch: Launch) -> str:
    """The command as lines for a shell; values that are passed on are the shell's own."""
    lines = ["docker run", *map(shlex.join, _options(launch))]
    return " \\\n  ".join([*lines, shlex.join([launch.image, *launch.command])]) + "\n"


def _options(launch: Launch) -> Iterator[Option]:
    yield "--detach", "--name", launch.name
    if launch.restart:
        yield "--restart", "unless-stopped"
    yield "--cap-drop", "ALL", "--security-opt", "no-new-privileges"
    if launch.user:
        yield "--user", launch.user
    yield "--stop-timeout", str(launch.stop_seconds)
    yield "--log-driver", "local"  # of bounded size
    yield from _resources(launch)
    for mount in launch.mounts:
        yield "--volume", f"{mount.source}:{mount.target}{':ro' if mount.read_only else ''}"
    for name, value in launch.environment.items():
        yield "--env", f"{name}={value}"
    for name in launch.passed_on:
        yield "--env", name
    for name, value in launch.labels.items():
        yield "--label", f"{name}={value}"


def _resources(launch: Launch) -> Iterator[Option]:
    if launch.gpus:
        yield "--gpus", "all"
    for device in launch.devices:
        yield "--device", device
    if launch.host_network:
        yield "--network", "host"
    for port in launch.ports:
        yield "--publish", f"{port.place}:{port.container}"
    yield "--shm-size", str(launch.shm_bytes)
    if launch.unlimited_memlock:
        yield "--ulimit", "memlock=-1:-1"
    if launch.memory_bytes is not None:
        # without the second, a container may swap as much again
        yield "--memory", str(launch.memory_bytes), "--memory-swap", str(launch.memory_bytes)
