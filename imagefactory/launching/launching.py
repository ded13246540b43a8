"""The container that serves a model, whoever starts it: Docker, Compose, systemd or Kubernetes.

Recipes say what is served and clusters say where; both end as a `Launch`, and each form that a
launch is written in is a module of this package.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from imagefactory.errors import InputError, fail

#: The folder of the image in which models and compiled kernels are cached.
CACHE = "/root/.cache"
#: Where a container finds tuned kernels, and the variable that tells vLLM.
TUNINGS, TUNED = "/tunings", "VLLM_TUNED_CONFIG_FOLDER"
#: Where the entrypoint puts it for users who have no home in the image; the number is the user's.
_CACHE_OF_USER = "/tmp/home-{}/.cache"  # noqa: S108 - in the container
#: A user of the image by number, with a group or without: ``1000:1000``. Root is nobody special.
USER = r"[1-9][0-9]{0,9}(?::[0-9]{1,10})?"
#: What NCCL's RDMA transport opens.
RDMA_DEVICES = "/dev/infiniband"


def cache_of(user: str) -> str:
    """The folder in which models and compiled kernels are cached for a user."""
    return _CACHE_OF_USER.format(user.partition(":")[0]) if user else CACHE


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A folder of the host, or a named volume, in the container.

    Attributes:
        source: an absolute path of the host, or the name of a volume.
        target: an absolute path of the container.
        read_only: whether it is not written to, so that a folder without content is of no use.
        files: what is in the folder, by name, for a form that brings it along.
    """

    source: str
    target: str
    read_only: bool = False
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_volume(self) -> bool:
        """Whether the engine keeps the folder, under a name."""
        return not self.source.startswith("/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """A port of the container that the host publishes at `address`."""

    host: int
    container: int = 8000
    address: str = "127.0.0.1"

    @property
    def place(self) -> str:
        """Where it is reached, as in a URL; an address of IPv6 is in brackets."""
        return (
            f"[{self.address}]:{self.host}"
            if ":" in self.address
            else f"{self.address}:{self.host}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One container.

    Attributes:
        name: its name, which is unique on its host.
        image: the image's reference, by digest unless the user chose a tag.
        command: what follows the image: a mode of the entrypoint, and its arguments.
        user: whom its processes run as, as in `USER`; empty is root.
        environment: variables with their values, none of them secret.
        passed_on: names of variables whose values come from whoever starts the container, such as
            ``HF_TOKEN``: no file ever contains these values.
        gpus: whether it uses all GPUs of the host.
        devices: device folders of the host, such as ``/dev/infiniband``.
        host_network: whether it shares the host's network; it publishes no ports then.
        shm_bytes: the size of ``/dev/shm``.
        unlimited_memlock: whether it may pin any amount of memory, as RDMA does.
        memory_bytes: the most memory that it may use; None is no limit.
        restart: whether the engine starts it again when it ends or the host boots.
        stop_seconds: how long it may finish requests when it is stopped, before it is killed; the
            entrypoint takes 30 s for them, and vLLM a few more to end.
        labels: its labels, by which it is found again.
    """

    name: str
    image: str
    command: tuple[str, ...]
    user: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    passed_on: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()
    ports: tuple[Port, ...] = ()
    gpus: bool = True
    devices: tuple[str, ...] = ()
    host_network: bool = False
    shm_bytes: int = 16 << 30
    unlimited_memlock: bool = False
    memory_bytes: int | None = None
    restart: bool = False
    stop_seconds: int = 40
    labels: Mapping[str, str] = field(default_factory=dict)


def check_cache(launch: Launch) -> None:
    """Raise InputError if a user other than root cannot write to the cache."""
    for mount in launch.mounts:
        if launch.user and mount.is_volume and mount.target == cache_of(launch.user):
            what = f"the volume {mount.source} belongs to root, and user {launch.user} cannot write"
            fix = "name a folder of that user as the cache"
            raise fail(InputError, "launch-cache", what, fix=fix)
