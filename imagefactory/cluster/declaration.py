"""Reads ``cluster.yaml``: the nodes, and what they serve together."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from imagefactory.cluster import rules
from imagefactory.cluster.schema import Executor, FileKeys, NodeKeys
from imagefactory.errors import InputError, Problem
from imagefactory.launching.launching import Mount
from imagefactory.system import yamlfile
from imagefactory.system.yamlfile import Positions


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine of the cluster.

    Attributes:
        host: how ssh reaches it: ``[user@]host[:port]``.
        address: its address in the network of the nodes.
        interfaces: of that network; both halves of a ConnectX-7 port of a DGX Spark.
        rdma: the RDMA devices of these interfaces.
    """

    host: str
    address: str
    interfaces: tuple[str, ...] = ()
    rdma: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What ``cluster.yaml`` declares.

    Attributes:
        file: the file, as it is named in messages.
        name: of the cluster; its containers are called ``NAME-RANK``.
        image: the image's reference, or
        cell: the cell of the matrix whose image it is.
        model: what is served, as vLLM names it; empty with a recipe.
        recipe: the recipe that says what is served and how.
        args: further options of ``vllm serve``.
        executor: what spreads the model over the nodes: vLLM's own ``mp``, or Ray.
        port: where the head serves.
        gpus: whether the nodes have GPUs, one each.
        restart: whether containers start again with their host.
        user: whom the containers run as, by number; empty is root.
        cache: what is mounted where models and compiled kernels are cached.
        mounts: further folders and volumes that all containers have.
        environment: variables of all containers.
        pass_on: variables whose values come from whoever starts the containers.
        nodes: the head first.
    """

    file: str
    name: str
    image: str | None
    cell: str | None
    model: str
    recipe: str | None
    args: tuple[str, ...]
    executor: Executor
    port: int
    gpus: bool
    restart: bool
    user: str
    cache: str
    mounts: tuple[Mount, ...]
    environment: tuple[tuple[str, str], ...]
    pass_on: tuple[str, ...]
    nodes: tuple[Node, ...]


def load(path: Path) -> Cluster:
    """Read the file. Raises InputError with all problems, each with its line."""
    file, positions, problems = yamlfile.examine(path, FileKeys, prefix="cluster")
    if file is None:
        raise InputError(yamlfile.in_file_order(problems))
    words, unsplit = _split(file.args, positions)
    problems += [*unsplit, *rules.problems(file, words, positions)]
    if problems:
        raise InputError(yamlfile.in_file_order(problems))
    head = _head(file.nodes)
    return Cluster(
        file=positions.file,
        name=file.name,
        image=file.image,
        cell=file.cell,
        model=file.model or "",
        recipe=file.recipe,
        args=words,
        executor=file.executor,
        port=file.port,
        gpus=file.gpus,
        restart=file.restart,
        user=file.user or "",
        cache=file.cache,
        mounts=tuple(map(_mount, file.mounts)),
        environment=tuple(file.environment.items()),
        pass_on=tuple(file.pass_on),
        nodes=tuple(
            Node(
                host=one.host,
                address=rules.plain_address(one.address),
                interfaces=tuple(one.interfaces),
                rdma=tuple(one.rdma),
            )
            for one in sorted(file.nodes, key=lambda one: one is not head)
        ),
    )


def _split(text: str, positions: Positions) -> tuple[tuple[str, ...], list[Problem]]:
    try:
        return tuple(shlex.split(text)), []
    except ValueError as error:
        where = str(positions.locate(("args",)))
        what, fix = f"'args' cannot be split into words: {error}", "close the quotes"
        return (), [Problem(code="cluster-args", where=where, what=what, fix=fix)]


def _head(nodes: list[NodeKeys]) -> NodeKeys:
    """The node that says so, or the first that does not say anything else."""
    declared = [one for one in nodes if one.role == "head"]
    return (declared or [one for one in nodes if one.role is None])[0]


def _mount(text: str) -> Mount:
    source, target, *mode = text.split(":")
    return Mount(source=source, target=target, read_only=mode == ["ro"])
