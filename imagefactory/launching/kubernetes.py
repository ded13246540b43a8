"""A launch as a Deployment of Kubernetes, with a Service if it has ports. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

from imagefactory.errors import InputError, fail
from imagefactory.launching import documents
from imagefactory.launching.launching import RDMA_DEVICES, Launch, Mount

#: Resources of NVIDIA's device plugin, and of its network operator's plugin for shared RDMA
#: devices: a container that is not privileged gets devices from a plugin only.
GPU, RDMA = "nvidia.com/gpu", "rdma/rdma_shared_device_a"
SHM = "/dev/shm"  # noqa: S108 - in the container
#: Seconds between questions whether the server is up.
ASK_SECONDS = 10
#: The most bytes of a ConfigMap's files, and of the annotation in which a plain `kubectl apply`
#: keeps a whole object.
LARGEST_MAP, LARGEST_APPLIED = 1 << 20, 256 << 10


def text(launch: Launch) -> str:
    """The objects as YAML; Kubernetes restarts the container, whatever the launch says."""
    name = documents.dns_name(launch.name)
    selector = {"app.kubernetes.io/name": name}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": selector},
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},  # two servers do not fit on one GPU
            "selector": {"matchLabels": selector},
            "template": {
                "metadata": {
                    "labels": selector,
                    # labels are short in Kubernetes, annotations are not
                    **({"annotations": dict(launch.labels)} if launch.labels else {}),
                },
                "spec": _pod(launch, name),
            },
        },
    }
    maps = [_config_map(mount, name) for mount in launch.mounts if mount.files]
    services = [_service(launch, name, selector)] if launch.ports else []
    remarks = [*_remarks(launch, name)]
    if any(len(json.dumps(one)) > LARGEST_APPLIED for one in maps):
        remarks.append("too large for a plain kubectl apply: kubectl apply --server-side -f FILE")
    return documents.dump(*maps, deployment, *services, remarks=remarks)


def _remarks(launch: Launch, name: str) -> Iterator[str]:
    """What has to exist before."""
    if launch.passed_on:
        values = " ".join(f'--from-literal={one}="${one}"' for one in launch.passed_on)
        yield f"kubectl create secret generic {_secret(name)} {values}"
    for mount in launch.mounts:
        if mount.is_volume:
            yield f"needs the PersistentVolumeClaim {documents.dns_name(mount.source)}"
    for resource in _devices(launch):
        yield f"needs the device plugin that offers {resource}"


def _pod(launch: Launch, name: str) -> dict[str, Any]:
    # a Service called vllm would set VLLM_PORT, which vLLM takes for its own variable
    found: dict[str, Any] = {
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": launch.stop_seconds,
    }
    if launch.user:
        found["securityContext"] = _user(launch.user)
    if launch.host_network:
        found |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    shm = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": str(launch.shm_bytes)}}
    mounts = enumerate(launch.mounts)
    volumes = [{"name": f"mount-{number}", **_volume(mount, name)} for number, mount in mounts]
    return {**found, "containers": [_container(launch, name)], "volumes": [shm, *volumes]}


def _user(user: str) -> dict[str, Any]:
    number, _, group = user.partition(":")
    # what is claimed belongs to the group, so that the user can write there
    groups = dict.fromkeys(("runAsGroup", "fsGroup"), int(group)) if group else {}
    return {"runAsNonRoot": True, "runAsUser": int(number), **groups}


def _volume(mount: Mount, name: str) -> dict[str, Any]:
    if mount.files:
        items = [{"key": _key(number), "path": path} for number, path in enumerate(mount.files)]
        return {"configMap": {"name": _map_name(mount, name), "items": items}}
    if mount.is_volume:
        return {"persistentVolumeClaim": {"claimName": documents.dns_name(mount.source)}}
    # a pod without the folder does not start, and says why
    return {
        "hostPath": {"path": mount.source, **({"type": "Directory"} if mount.read_only else {})}
    }


def _config_map(mount: Mount, name: str) -> dict[str, Any]:
    """The files of a mount. Raises InputError if Kubernetes would refuse them."""
    size = sum(len(text.encode()) for text in mount.files.values())
    if size > LARGEST_MAP:
        what = f"the files of {mount.source} have {size} bytes, and a ConfigMap {LARGEST_MAP}"
        fix = "remove those that this model does not use"
        raise fail(InputError, "kubernetes-files", what, fix=fix)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": _map_name(mount, name)},
        "data": {_key(number): text for number, text in enumerate(mount.files.values())},
    }


def _map_name(mount: Mount, name: str) -> str:
    """It changes with the files, so that the pod starts again with new ones."""
    digest = hashlib.sha256(json.dumps(mount.files, sort_keys=True).encode()).hexdigest()[:12]
    return f"{name}-{documents.dns_name(mount.target)}-{digest}"


def _key(number: int) -> str:
    """The key of a file, whose name may have what no key may, such as ``=`` and ``,``."""
    return f"file-{number}"


def _container(launch: Launch, name: str) -> dict[str, Any]:
    capabilities: dict[str, Any] = {"drop": ["ALL"]}
    if launch.unlimited_memlock:
        capabilities["add"] = ["IPC_LOCK"]  # Kubernetes sets no limits of processes
    limits = dict.fromkeys(_devices(launch), "1")
    if launch.memory_bytes is not None:
        limits["memory"] = str(launch.memory_bytes)
    environment = [{"name": key, "value": _literal(v)} for key, v in launch.environment.items()]
    found: dict[str, Any] = {
        "name": name,
        "image": launch.image,
        "args": [_literal(word) for word in launch.command],
        "env": [*environment, *(_from_secret(variable, name) for variable in launch.passed_on)],
        "resources": {"limits": limits},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": capabilities,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumeMounts": [
            {"name": "shm", "mountPath": SHM},
            *(
                {
                    "name": f"mount-{number}",
                    "mountPath": mount.target,
                    **({"readOnly": True} if mount.read_only else {}),
                }
                for number, mount in enumerate(launch.mounts)
            ),
        ],
    }
    if launch.ports:
        found["ports"] = [{"containerPort": port.container} for port in launch.ports]
        probe = {"httpGet": {"path": "/health", "port": launch.ports[0].container}}
        found["readinessProbe"] = {**probe, "periodSeconds": ASK_SECONDS}
    return found


def _service(launch: Launch, name: str, selector: dict[str, str]) -> dict[str, Any]:
    ports = [
        {"name": f"port-{port.host}", "port": port.host, "targetPort": port.container}
        for port in launch.ports
    ]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": selector},
        "spec": {"selector": selector, "ports": ports},
    }


def _devices(launch: Launch) -> list[str]:
    return [*([GPU] if launch.gpus else []), *([RDMA] if RDMA_DEVICES in launch.devices else [])]


def _from_secret(variable: str, name: str) -> dict[str, Any]:
    secret = {"name": _secret(name), "key": variable, "optional": True}
    return {"name": variable, "valueFrom": {"secretKeyRef": secret}}


def _secret(name: str) -> str:
    return f"{name}-environment"


def _literal(text: str) -> str:
    """``text`` without a variable that Kubernetes would expand."""
    return text.replace("$(", "$$(")
