"""A launch as a Compose file. Pure."""

from __future__ import annotations

from typing import Any

from imagefactory.launching import documents
from imagefactory.launching.launching import Launch

#: Docker would make an empty folder where there is none, as on another machine.
_MUST_EXIST = {"create_host_path": False}


def text(launch: Launch) -> str:
    """The Compose file; ``docker compose`` takes what is passed on from its own environment."""
    volumes = {mount.source: {"name": mount.source} for mount in launch.mounts if mount.is_volume}
    file = {
        "name": documents.dns_name(launch.name),
        "services": {launch.name: _service(launch)},
        # with a name of its own, a volume is shared with other projects
        **({"volumes": volumes} if volumes else {}),
    }
    return documents.dump(file)


def _service(launch: Launch) -> dict[str, Any]:
    environment = {name: _literal(value) for name, value in launch.environment.items()}
    found: dict[str, Any] = {
        "container_name": launch.name,
        "image": launch.image,
        "command": [_literal(word) for word in launch.command],
        "restart": "unless-stopped" if launch.restart else "no",
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "stop_grace_period": f"{launch.stop_seconds}s",
        "logging": {"driver": "local"},
        "shm_size": launch.shm_bytes,
        **({"user": launch.user} if launch.user else {}),
    }
    if launch.gpus:
        gpu = {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
        found["deploy"] = {"resources": {"reservations": {"devices": [gpu]}}}
    if launch.devices:
        found["devices"] = [f"{device}:{device}" for device in launch.devices]
    if launch.host_network:
        found["network_mode"] = "host"
    if launch.ports:
        found["ports"] = [f"{p.place}:{p.container}" for p in launch.ports]
    if launch.unlimited_memlock:
        found["ulimits"] = {"memlock": {"soft": -1, "hard": -1}}
    if launch.memory_bytes is not None:
        # without the second, a container may swap as much again
        found |= {"mem_limit": launch.memory_bytes, "memswap_limit": launch.memory_bytes}
    if launch.mounts:
        found["volumes"] = [
            {
                "type": "volume" if mount.is_volume else "bind",
                "source": _literal(mount.source),
                "target": _literal(mount.target),
                **({"read_only": True} if mount.read_only else {}),
                **({"bind": _MUST_EXIST} if mount.read_only and not mount.is_volume else {}),
            }
            for mount in launch.mounts
        ]
    if environment or launch.passed_on:
        found["environment"] = environment | dict.fromkeys(launch.passed_on)
    if launch.labels:
        found["labels"] = {name: _literal(value) for name, value in launch.labels.items()}
    return found


def _literal(text: str) -> str:
    """``text`` without a variable that Compose would expand."""
    return text.replace("$", "$$")
