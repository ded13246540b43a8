"""Judges whether nodes can serve a model together. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from imagefactory.cluster import rules
from imagefactory.cluster.cluster import Member
from imagefactory.cluster.looking import Facts
from imagefactory.errors import FactoryError
from imagefactory.matrix import cell_rules
from imagefactory.planning.image_config import LABEL
from imagefactory.system.engine import ImageInfo
from imagefactory.upkeep.finding import Finding, Health, of

GIB = 1 << 30
#: The share of memory that an image's server takes unless it is given another one.
DEFAULT_SHARE = 0.75
#: Seconds by which clocks may differ.
MOST_SKEW = 2.0
MOST_SWAPPINESS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The findings about a node; ``reached`` is whether it answered."""

    member: Member
    reached: bool
    findings: tuple[Finding, ...]


def judge(members: Sequence[Member], answers: Sequence[Facts | FactoryError]) -> list[Judged]:
    """Judge each node, compared with the first that answered."""
    pairs = list(zip(members, answers, strict=True))
    first = next((facts for _, facts in pairs if isinstance(facts, Facts)), None)
    return [
        Judged(member=member, reached=False, findings=_unreached(facts))
        if isinstance(facts, FactoryError) or first is None
        else Judged(member=member, reached=True, findings=tuple(_findings(member, facts, first)))
        for member, facts in pairs
    ]


def _unreached(error: object) -> tuple[Finding, ...]:
    problems = error.problems if isinstance(error, FactoryError) else ()
    return tuple(_bad("node", one.what, one.fix) for one in problems)


def _findings(member: Member, facts: Facts, first: Facts) -> Iterator[Finding]:
    yield of("node", f"Docker {facts.engine}")
    yield _image(member, facts.image, first.image)
    if member.launch.gpus:
        yield _driver(facts, first)
    yield from _interfaces(member, facts, first)
    yield from _rdma(member, facts)
    yield from _memory(member, facts)
    yield _swap(facts)
    yield _clock(facts, first)


def _bad(name: str, seen: str, remedy: str) -> Finding:
    return Finding(name=name, health=Health.BAD, seen=seen, remedy=remedy)


def _image(member: Member, image: ImageInfo | None, first: ImageInfo | None) -> Finding:
    ref = member.launch.image
    send = f"imagefactory distribute {member.node.host} --tag {ref}"
    remedy = f"docker pull {ref} there" if "@" in ref else send
    if image is None:
        return _bad("image", "missing", remedy)
    if first and content(image) != content(first):
        seen = f"{image.digest[:19]} has another content than on the first node"
        return _bad("image", seen, remedy)
    return of("image", f"{image.digest[:19]}, {len(image.layers)} layers")


def content(image: ImageInfo) -> tuple[object, ...]:
    """What has to be equal on all nodes; digests depend on how an engine stores images."""
    return image.platform, image.layers, dict(image.env), dict(image.labels)


def _driver(facts: Facts, first: Facts) -> Finding:
    if not facts.drivers:
        return _bad("driver", "nvidia-smi finds no GPU", "install NVIDIA's driver, reboot")
    driver = facts.drivers[0]
    upgrade = "upgrade the driver (DGX OS: sudo apt full-upgrade, reboot)"
    oldest = _oldest_driver(facts.image)
    if oldest and not cell_rules.is_new_enough(driver, oldest):
        return _bad("driver", f"{driver}, but the image needs {oldest}", upgrade)
    if first.drivers and driver != first.drivers[0]:
        return of("driver", f"{driver}, but {first.drivers[0]} on the first node", upgrade)
    return of("driver", f"{driver}{f', the image needs {oldest}' if oldest else ''}")


def _oldest_driver(image: ImageInfo | None) -> str | None:
    """The oldest driver that runs all of the image's CUDA code."""
    labels = image.labels if image else {}
    toolkit = labels.get(f"{LABEL}.pin.cuda", "")
    override = labels.get(f"{LABEL}.driver-override", "").partition(":")[0]
    return override or cell_rules.drivers().get(toolkit)


def _interfaces(member: Member, facts: Facts, first: Facts) -> Iterator[Finding]:
    node = member.node
    owners = [name for name, one in facts.interfaces.items() if node.address in one.addresses]
    if not owners:
        remedy = "correct the address, or give it to an interface (netplan)"
        yield _bad("address", f"no interface has {node.address}", remedy)
    elif node.interfaces and not {*owners} & {*node.interfaces}:
        seen = f"{node.address} is on {owners[0]}, not on {' or '.join(node.interfaces)}"
        yield _bad("address", seen, f"write interfaces: [{owners[0]}], or correct the address")
    else:
        yield of("address", f"{node.address} on {owners[0]}")
    for name in node.interfaces:
        found = facts.interfaces.get(name)
        if found is None:
            known = ", ".join(sorted({*facts.interfaces} - {"lo"}))
            yield _bad(name, "no such interface", f"there are {known}")
        elif not found.up:
            remedy = f"plug in its cable, or: sudo ip link set {name} up"
            yield _bad(name, "down", remedy)
        elif not found.addresses:
            yield _bad(name, "up, but has no address", f"give {name} an address (netplan)")
        else:
            other = first.interfaces.get(name, found)
            remedy = f"sudo ip link set {name} mtu {max(found.mtu, other.mtu)}, on both nodes"
            differs = f", but {other.mtu} on the first node" if other.mtu != found.mtu else ""
            yield of(name, f"up, MTU {found.mtu}{differs}", remedy if differs else "")


def _rdma(member: Member, facts: Facts) -> Iterator[Finding]:
    active = [name for name, state in facts.rdma.items() if state == "active"]
    if not member.node.rdma:
        if active:
            remedy = f"add it to the node, so that NCCL uses it: rdma: [{', '.join(active)}]"
            yield of("RDMA", f"{', '.join(active)} active, but not used", remedy)
        return
    if not facts.verbs:
        remedy = "sudo modprobe ib_uverbs: containers need these devices"
        yield _bad("RDMA", "nothing in /dev/infiniband", remedy)
    for name in member.node.rdma:
        state = facts.rdma.get(name)
        if state is None:
            known = ", ".join(facts.rdma) or "none: sudo modprobe mlx5_ib"
            yield _bad(name, "no such RDMA device", f"there are {known}")
        elif state != "active":
            yield _bad(name, state, "plug in the cable of its port; ibdev2netdev shows which")
        else:
            yield of(name, state)


def _memory(member: Member, facts: Facts) -> Iterator[Finding]:
    total, available = facts.memory.get("MemTotal", 0), facts.memory.get("MemAvailable", 0)
    seen = f"{available / GIB:.1f} of {total / GIB:.1f} GiB available"
    if not member.launch.gpus or not total:
        yield of("memory", seen)
        return
    wanted = _wanted(member.launch.command, total)
    if available < wanted:
        remedy = f"stop what holds memory, or --gpu-memory-utilization {available / total:.2f}"
        yield _bad("memory", f"{seen}, but {wanted / GIB:.1f} GiB are wanted", remedy)
        return
    yield of("memory", seen)
    if facts.memory.get("MemFree", available) < wanted:
        cached = (available - facts.memory["MemFree"]) / GIB
        remedy = "sync; echo 3 | sudo tee /proc/sys/vm/drop_caches"
        yield of("page cache", f"{cached:.1f} GiB, which CUDA does not count as free", remedy)


def _wanted(command: Sequence[str], total: int) -> float:
    """The bytes of memory that a server takes; a value that is no number is vLLM's to refuse."""
    words = tuple(command)
    number = rules.value_of(words, "--gpu-memory-utilization-gb")  # of a patch
    share = rules.value_of(words, "--gpu-memory-utilization")
    try:
        return float(number) * GIB if number else float(share or DEFAULT_SHARE) * total
    except ValueError:
        return DEFAULT_SHARE * total


def _swap(facts: Facts) -> Finding:
    total = facts.memory.get("SwapTotal", 0)
    used = total - facts.memory.get("SwapFree", 0)
    if not total:
        return of("swap", "none")
    seen = f"{used / GIB:.1f} of {total / GIB:.1f} GiB used, swappiness {facts.swappiness}"
    if used > GIB:
        return of("swap", seen, "stop what does not fit, then sudo swapoff -a && sudo swapon -a")
    slow = facts.swappiness > MOST_SWAPPINESS
    return of("swap", seen, "sudo sysctl vm.swappiness=1" if slow else "")


def _clock(facts: Facts, first: Facts) -> Finding:
    # when exactly the clocks were read is not known: the difference lies between these
    least, most = facts.clock[0] - first.clock[1], facts.clock[1] - first.clock[0]
    if least > MOST_SKEW or most < -MOST_SKEW:
        skew = least if least > 0 else most
        remedy = "sudo timedatectl set-ntp true, on both nodes"
        return _bad("clock", f"differs by {skew:+.0f} s from the first node", remedy)
    return of("clock", f"differs by {max(abs(least), abs(most)):.1f} s at most")
