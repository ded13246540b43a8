"""What runs on each node of a cluster: one container each, all of one server. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from imagefactory.cluster import rules
from imagefactory.cluster.declaration import Cluster, Node
from imagefactory.cluster.rules import MASTER_PORT, RAY_PORT
from imagefactory.launching.launching import (
    RDMA_DEVICES,
    TUNED,
    TUNINGS,
    Launch,
    Mount,
    cache_of,
)

#: The labels of containers: the cluster's name, and the number of the node.
LABEL, RANK_LABEL = "io.imagefactory.cluster", "io.imagefactory.cluster.rank"
#: Ray's head goes on in the background; the server takes the place of the shell. A worker fails if
#: there is no head yet.
_RAY_HEAD = (
    f"ray start --head --port={RAY_PORT} --node-ip-address={{address}} --disable-usage-stats "
    '&& exec /opt/imagefactory/entrypoint serve "$@"'
)
_RAY_WORKER = (
    f"until (: </dev/tcp/{{address}}/{RAY_PORT}) 2>/dev/null; do sleep 1; done; "
    "exec /opt/imagefactory/entrypoint ray-worker"
)


@dataclass(frozen=True, slots=True)
class Tunings:
    """Tuned kernels by the names of their files; nodes have them in a volume of their own."""

    files: Mapping[str, str]

    @property
    def volume(self) -> str:
        """Its name, which changes with the files."""
        text = json.dumps(self.files, sort_keys=True)
        return f"imagefactory-tunings-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A node with its container; rank 0 is the head, which serves.

    ``tunings`` have to be on the node before the container starts.
    """

    node: Node
    rank: int
    launch: Launch
    tunings: Tunings | None = None

    @property
    def role(self) -> str:
        """What it is called."""
        return "worker" if self.rank else "head"


def members(cluster: Cluster, image: str, tunings: Tunings | None = None) -> tuple[Member, ...]:
    """The nodes with their containers of ``image``, the head first.

    Tunings are for GPUs, and give way to those that the file names.
    """
    if not cluster.gpus or TUNED in dict(cluster.environment):
        tunings = None
    if tunings:
        tuned = Mount(source=tunings.volume, target=TUNINGS, read_only=True)
        cluster = replace(
            cluster,
            mounts=(*cluster.mounts, tuned),
            environment=(*cluster.environment, (TUNED, TUNINGS)),
        )
    return tuple(
        Member(node=node, rank=rank, launch=_launch(cluster, node, rank, image), tunings=tunings)
        for rank, node in enumerate(cluster.nodes)
    )


def serving(
    cluster: Cluster, model: str, args: Sequence[str], env: Mapping[str, str], user: str
) -> Cluster:
    """The cluster with what a recipe says; the file's own options, variables and user win."""
    return replace(
        cluster,
        model=model,
        args=(*args, *cluster.args),
        environment=(*env.items(), *cluster.environment),
        user=cluster.user or user,
    )


def _launch(cluster: Cluster, node: Node, rank: int, image: str) -> Launch:
    return Launch(
        name=f"{cluster.name}-{rank}",
        image=image,
        command=_ray(cluster, node, rank) if cluster.executor == "ray" else _mp(cluster, rank),
        user=cluster.user,
        environment={**_network(cluster, node, rank), **dict(cluster.environment)},
        passed_on=cluster.pass_on,
        mounts=(Mount(source=cluster.cache, target=cache_of(cluster.user)), *cluster.mounts),
        gpus=cluster.gpus,
        devices=(RDMA_DEVICES,) if node.rdma else (),
        host_network=True,
        unlimited_memlock=bool(node.rdma),  # RDMA pins what it sends
        restart=cluster.restart,
        labels={LABEL: cluster.name, RANK_LABEL: str(rank)},
    )


def _mp(cluster: Cluster, rank: int) -> tuple[str, ...]:
    head, count = cluster.nodes[0], len(cluster.nodes)
    together = (
        *("--distributed-executor-backend", "mp", "--nnodes", str(count)),
        *("--node-rank", str(rank), "--master-addr", head.address),
        *("--master-port", str(MASTER_PORT)),
        *(("--headless",) if rank else ()),
    )
    return ("serve", *_serve(cluster), *(together if count > 1 else ()))


def _ray(cluster: Cluster, node: Node, rank: int) -> tuple[str, ...]:
    if rank:
        return ("bash", "-c", _RAY_WORKER.format(address=cluster.nodes[0].address))
    script = _RAY_HEAD.format(address=node.address)
    options = ("--distributed-executor-backend", "ray")
    return ("bash", "-c", script, "bash", *_serve(cluster), *options)


def _serve(cluster: Cluster) -> tuple[str, ...]:
    """The model and the options that all nodes have; by default a tensor is on all of them."""
    sized = rules.value_of(cluster.args, *(name for names in rules.SIZES for name in names))
    size = () if sized else ("--tensor-parallel-size", str(len(cluster.nodes)))
    return (cluster.model, "--port", str(cluster.port), *size, *cluster.args)


def _network(cluster: Cluster, node: Node, rank: int) -> dict[str, str]:
    """Variables that keep all traffic between nodes in their network."""
    found = {"VLLM_HOST_IP": node.address}
    if node.interfaces:
        found["GLOO_SOCKET_IFNAME"] = node.interfaces[0]
        # without the sign, a name is the beginning of names
        found["NCCL_SOCKET_IFNAME"] = f"={','.join(node.interfaces)}"
    if node.rdma:
        # by its name, a missing RDMA transport is an error; otherwise NCCL silently uses TCP
        found |= {"NCCL_NET": "IB", "NCCL_IB_HCA": f"={','.join(node.rdma)}"}
    elif cluster.gpus and len(cluster.nodes) > 1:
        found["NCCL_IB_DISABLE"] = "1"
    if cluster.executor == "ray":
        found["RAY_NODE_IP"] = node.address
        if rank:
            found["RAY_HEAD_ADDRESS"] = f"{cluster.nodes[0].address}:{RAY_PORT}"
    return found
