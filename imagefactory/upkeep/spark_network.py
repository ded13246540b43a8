"""The ConnectX-7 ports of a DGX Spark, and RDMA through them.

Each of the two ports is two interfaces of half its speed, because it is connected to the GB10 by
two links of PCIe: ``enp1s0f0np0`` and ``enP2p1s0f0np0`` are one port.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from imagefactory.upkeep.finding import Finding, of

MELLANOX = "0x15b3"
#: What both ends of a cable should be set to: with 1500, TCP reaches half the speed of a link.
LARGE_MTU = 9000


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """One of a port's interfaces; ``port`` is the function of its PCI address."""

    name: str
    port: str
    up: bool
    mtu: int


def examine(root: Path) -> Iterator[Finding]:
    """Examine ports and RDMA devices below ``root``."""
    found = sorted(_interfaces(root), key=lambda one: _by_name(Path(one.name)))
    ports = {one.port: [other for other in found if other.port == one.port] for one in found}
    if not ports:
        seen = "no interface: DGX OS turns the adapter off while no cable is plugged in"
        yield of("ConnectX", seen)
        return
    for port, interfaces in sorted(ports.items()):
        yield _port(f"ConnectX port {port}", interfaces)
    yield _rdma(root, any(one.up for one in found))


def _interfaces(root: Path) -> Iterator[Interface]:
    folder = root / "sys/class/net"
    for path in folder.iterdir() if folder.is_dir() else ():
        if _read(path / "device/vendor") == MELLANOX:
            address = os.path.realpath(path / "device")
            yield Interface(
                name=path.name,
                port=address.rpartition(".")[2],
                up=_read(path / "operstate") == "up",
                mtu=int(_read(path / "mtu") or 0),
            )


def _port(name: str, interfaces: list[Interface]) -> Finding:
    up = [one for one in interfaces if one.up]
    down = [one for one in interfaces if not one.up]
    if not up:
        return of(name, f"no link ({_names(down)})")
    seen = f"{_names(up)} up, MTU {' and '.join(sorted({str(one.mtu) for one in up}))}"
    remedies = []
    if down:
        seen += f"; {_names(down)} down: half of the port's speed"
        remedies.append(
            f"give {_names(down)} an address, too (netplan); if it stays down, try another cable"
        )
    small = [one.name for one in up if one.mtu < LARGE_MTU]
    if small:
        commands = " && ".join(f"sudo ip link set {one} mtu {LARGE_MTU}" for one in small)
        remedies.append(f"{commands}, at both ends")
    return of(name, seen, "; ".join(remedies))


def _rdma(root: Path, in_use: bool) -> Finding:
    folder = root / "sys/class/infiniband"
    states = {
        path.name: _read(path / "ports/1/state").rpartition(" ")[2].lower()
        for path in (sorted(folder.iterdir(), key=_by_name) if folder.is_dir() else ())
    }
    seen = ", ".join(f"{name} {state}" for name, state in states.items()) or "no device"
    if not states:
        remedy = "sudo modprobe mlx5_ib: without RDMA, NCCL silently uses TCP"
        return of("RDMA", seen, remedy if in_use else "")
    if not any((root / "dev/infiniband").glob("uverbs*")):
        seen += ", but nothing in /dev/infiniband"
        remedy = "sudo modprobe ib_uverbs: containers need these devices"
        return of("RDMA", seen, remedy if in_use else "")
    return of("RDMA", seen)


def _by_name(path: Path) -> str:
    """The first of a port's two interfaces before the second, whose name has a capital letter."""
    return path.name.swapcase()


def _names(interfaces: list[Interface]) -> str:
    return " and ".join(one.name for one in interfaces)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
