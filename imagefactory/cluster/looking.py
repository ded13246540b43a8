"""Looks at the nodes of a cluster, all at once; judges nothing."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from imagefactory.cluster.cluster import Member
from imagefactory.errors import FactoryError, SetupError
from imagefactory.system import ssh
from imagefactory.system.engine import Engine, ImageInfo

Answer = TypeVar("Answer")
#: The engine of a host. Raises SetupError ``node-unreachable`` for one that is off.
EngineOf = Callable[[str], Engine]
#: Seconds that a node has to answer.
LOOK_SECONDS = 30

_SCRIPT = """\
LC_ALL=C; export LC_ALL
echo '[driver]'; nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null
echo '[memory]'; cat /proc/meminfo
echo '[swappiness]'; cat /proc/sys/vm/swappiness
echo '[interfaces]'
for d in /sys/class/net/*; do
  echo "${d##*/} $(cat "$d/operstate") $(cat "$d/mtu")"
done 2>/dev/null
echo '[addresses]'; ip -o addr show 2>/dev/null
echo '[rdma]'
for d in /sys/class/infiniband/*; do
  [ ! -e "$d" ] || echo "${d##*/} $(cat "$d/ports/1/state" 2>/dev/null)"
done
echo '[verbs]'; ls /dev/infiniband 2>/dev/null
echo '[clock]'; date +%s.%N
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """A network interface: whether it is up, its MTU and its addresses."""

    up: bool
    mtu: int
    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a node says about itself.

    Attributes:
        engine: the version of its engine.
        image: the cluster's image in its engine, if it has it.
        drivers: the version of NVIDIA's driver, for each GPU.
        memory: the fields of ``/proc/meminfo``, in bytes.
        swappiness: as the kernel has it.
        interfaces: by name.
        rdma: the state of each RDMA device, such as ``active``.
        verbs: whether containers can be given RDMA devices.
        clock: the bounds of its clock minus this machine's, in seconds.
    """

    engine: str
    image: ImageInfo | None
    drivers: tuple[str, ...]
    memory: Mapping[str, int]
    swappiness: int
    interfaces: Mapping[str, Interface]
    rdma: Mapping[str, str]
    verbs: bool
    clock: tuple[float, float]


def everywhere(
    members: Sequence[Member], ask: Callable[[Member], Answer]
) -> list[Answer | FactoryError]:
    """The answer of each node, or its error; all are asked at once.

    An engine that fails is SetupError ``node-unreachable``, with the host in the message.
    """

    def one(member: Member) -> Answer | FactoryError:
        try:
            return ask(member)
        except SetupError as error:
            (problem, *_) = error.problems
            engine = problem.code in ("engine-failed", "command-timeout")
            return ssh.unreachable(member.node.host, problem.what) if engine else error
        except FactoryError as error:
            return error

    with ThreadPoolExecutor(max(len(members), 1)) as pool:
        return list(pool.map(one, members))


def look(member: Member, engine_of: EngineOf) -> Facts:
    """Look at a node. Raises SetupError if it, or its engine, does not answer."""
    host = member.node.host
    before = time.time()
    text = ssh.run(host, _SCRIPT, timeout=LOOK_SECONDS)
    after = time.time()
    engine = engine_of(host)
    version = engine.answers()
    image = engine.find_images([member.launch.image]).get(member.launch.image)
    try:
        return parse(text, engine=version, image=image, asked=(before, after))
    except ValueError as error:
        raise ssh.unreachable(host, f"what it says of itself cannot be read: {error}") from None


def parse(text: str, *, engine: str, image: ImageInfo | None, asked: tuple[float, float]) -> Facts:
    """The facts in what the script writes; it ran between the two times ``asked``."""
    parts = re.split(r"(?m)^\[(\w+)\]\n", text)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    memory = re.findall(r"(?m)^(\w+): +(\d+) kB", sections.get("memory", ""))
    addresses: dict[str, list[str]] = {}
    for name, address in re.findall(
        r"(?m)^\d+: (\S+?)(?:@\S+)? +inet6? ([0-9a-f.:]+)", sections.get("addresses", "")
    ):
        addresses.setdefault(name, []).append(address)
    rows = [line.split() for line in sections.get("interfaces", "").splitlines()]
    devices = [line.split() for line in sections.get("rdma", "").splitlines()]
    clock = re.match(r"\d{1,12}(\.\d+)?", sections.get("clock", ""))  # not all know %N
    now = float(clock[0]) if clock else asked[1]
    swappiness = sections.get("swappiness", "").strip()
    return Facts(
        engine=engine,
        image=image,
        drivers=tuple(re.findall(r"(?m)^[\d.]+$", sections.get("driver", ""))),
        memory={name: int(kilobytes) * 1024 for name, kilobytes in memory},
        swappiness=int(swappiness) if swappiness.isdigit() else 0,
        interfaces={
            name: Interface(
                # loopback and bridges do not know whether they have a carrier
                up=state in ("up", "unknown"),
                mtu=int(mtu),
                addresses=tuple(addresses.get(name, ())),
            )
            for name, state, mtu in (row for row in rows if len(row) == 3)
        },
        rdma={row[0]: row[-1].lower() if len(row) > 1 else "unknown" for row in devices if row},
        verbs="uverbs" in sections.get("verbs", ""),
        clock=(now - asked[1], now - asked[0]),
    )
