"""The keys of ``cluster.yaml``."""

from __future__ import annotations

from typing import Literal

from imagefactory.system.yamlfile import Strict

Executor = Literal["mp", "ray"]


class NodeKeys(Strict):
    host: str
    address: str
    interfaces: list[str] = []
    rdma: list[str] = []
    role: Literal["head", "worker"] | None = None


class FileKeys(Strict):
    name: str = "vllm"
    image: str | None = None
    cell: str | None = None
    model: str | None = None
    recipe: str | None = None
    args: str = ""
    executor: Executor = "mp"
    port: int = 8000
    gpus: bool = True
    restart: bool = False
    user: str | None = None
    cache: str = "imagefactory-cache"
    mounts: list[str] = []
    environment: dict[str, str] = {}
    pass_on: list[str] = []
    nodes: list[NodeKeys]
