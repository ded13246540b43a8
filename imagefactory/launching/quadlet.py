"""A launch as a Podman quadlet: a systemd unit that runs a container. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from imagefactory.errors import InputError, fail
from imagefactory.launching.launching import Launch, Mount

#: All GPUs, by the name that ``nvidia-ctk cdi generate`` gives them.
GPUS = "nvidia.com/gpu=all"
#: An image of tens of gigabytes may have to be pulled first.
START_SECONDS = 3600
_BARE = re.compile(r"[A-Za-z0-9_./:@%$=,+-]+")

Line = tuple[str, str]


def text(launch: Launch) -> str:
    """The unit, for ``/etc/containers/systemd/NAME.container``."""
    waits = [("Wants", "network-online.target"), ("After", "network-online.target")]
    sections: dict[str, list[Line]] = {
        "Unit": [("Description", launch.name), *waits],
        "Container": list(_container(launch)),
        "Service": [
            ("Restart", "always" if launch.restart else "no"),
            ("TimeoutStartSec", str(START_SECONDS)),
        ],
    }
    if launch.restart:
        sections["Install"] = [("WantedBy", "multi-user.target default.target")]
    shown = (
        f"[{name}]\n" + "".join(f"{key}={value}\n" for key, value in lines)
        for name, lines in sections.items()
    )
    return "".join(f"# {line}\n" for line in _remarks(launch)) + "\n".join(shown)


def _remarks(launch: Launch) -> Iterator[str]:
    for name in launch.passed_on:
        yield f'before the first start: printf %s "${name}" | podman secret create {name} -'


def _container(launch: Launch) -> Iterator[Line]:
    yield "ContainerName", launch.name
    yield "Image", _literal(launch.image)
    if launch.command:
        yield "Exec", " ".join(map(_word, launch.command))
    yield "DropCapability", "all"
    yield "NoNewPrivileges", "true"
    if launch.user:
        user, _, group = launch.user.partition(":")
        yield "User", user
        if group:
            yield "Group", group
    yield "PodmanArgs", f"--stop-timeout={launch.stop_seconds}"  # StopTimeout= is new in Podman 5
    yield from _resources(launch)
    for mount in launch.mounts:
        yield "Volume", _volume(mount)
    for name, value in launch.environment.items():
        yield "Environment", _word(f"{name}={value}")
    for name in launch.passed_on:
        yield "Secret", f"{name},type=env,target={name}"
    for name, value in launch.labels.items():
        yield "Label", _word(f"{name}={value}")


def _resources(launch: Launch) -> Iterator[Line]:
    if launch.gpus:
        yield "AddDevice", GPUS
    for device in launch.devices:
        yield "AddDevice", _literal(device)
    if launch.host_network:
        yield "Network", "host"
    for port in launch.ports:
        yield "PublishPort", f"{port.place}:{port.container}"
    yield "ShmSize", str(launch.shm_bytes)
    if launch.unlimited_memlock:
        yield "Ulimit", "memlock=-1:-1"
    if launch.memory_bytes is not None:
        limit = launch.memory_bytes  # the key Memory= is not in every Podman that is in use
        yield "PodmanArgs", f"--memory={limit} --memory-swap={limit}"


def _volume(mount: Mount) -> str:
    return _literal(f"{mount.source}:{mount.target}{':ro' if mount.read_only else ''}")


def _literal(text: str) -> str:
    """``text`` without specifiers and variables, which systemd would expand."""
    return text.replace("%", "%%").replace("$", "$$")


def _word(text: str) -> str:
    """``text`` as one word of a list, as systemd splits it.

    Raises InputError for an empty one: Podman's generator drops it and all that follow.
    """
    if not text:
        what, fix = "a quadlet cannot have an empty argument", "write --option= as one word"
        raise fail(InputError, "quadlet-empty-argument", what, fix=fix)
    text = _literal(text)
    if _BARE.fullmatch(text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
