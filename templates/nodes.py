"""One server on several nodes, for the entrypoint beside this file.

Which nodes there are, how this one reaches the head, and that all end when one does.
"""

from __future__ import annotations

import fcntl
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, NoReturn

#: Where the nodes of one server watch each other. TCP asks a silent node again and again: one that
#: is off or cut off is gone after IDLE + PROBES * INTERVAL seconds. The server of each other node
#: is then asked to end, and killed GRACE seconds later.
WATCH_PORT = "29502"
IDLE, INTERVAL, PROBES, GRACE = 5, 5, 3, 15.0
#: Seconds for the head's name to be known: nodes may start before it.
RESOLVING = 60.0
SIOCGIFADDR = 0x8915
GREETING = b"imagefactory node "


class UsageError(Exception):
    """What the person asked for cannot be done; `code` is the exit code."""

    def __init__(self, text: str, code: int = 2) -> None:
        super().__init__(text)
        self.code = code


class Nodes(NamedTuple):
    """The nodes of one server, as one of them sees them.

    They watch each other at `address` and `port`.
    """

    total: int
    rank: int
    address: str
    port: int


def declared(options: Mapping[str, str], env: Mapping[str, str]) -> Nodes | None:
    """The nodes that a server with `options` is for, if there are several that watch each other."""
    if options.get("nnodes", "1") == "1":
        return None
    try:
        total, rank = int(options["nnodes"]), int(options.get("node-rank", "0"))
        port = int(env.get("NODE_WATCH_PORT") or WATCH_PORT)
    except ValueError as error:
        raise UsageError(f"NNODES, NODE_RANK and NODE_WATCH_PORT are numbers: {error}") from None
    address = options.get("master-addr")
    if not address:
        raise UsageError("no head: set MASTER_ADDR to the address of node 0, on every node")
    return Nodes(total, rank, address, port) if port else None


def interface(options: Mapping[str, str]) -> dict[str, str]:
    """This node's address and interface on the way to the head, for one that serves with others.

    Left alone, vLLM takes those of the default route, which is not the cable between two Sparks, or
    finds none.
    """
    address, until = options.get("master-addr", ""), time.monotonic() + RESOLVING
    if options.get("nnodes", "1") == "1" or not address:
        return {}
    while True:
        try:
            family, _, _, _, peer = socket.getaddrinfo(address, 1, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(peer)  # looks up the route, sends nothing
                own = probe.getsockname()[0]
            break
        except OSError as error:
            if time.monotonic() > until:
                problem = f"the head, {address}, cannot be found: {error}"
                raise UsageError(problem, 1) from None
            time.sleep(1)
    found = {"VLLM_HOST_IP": own}
    for _, name in socket.if_nameindex():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                known = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue  # it has no address
        if socket.inet_ntoa(known[20:24]) == own:
            found |= {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": f"={name}"}
    return found


def attend(argv: Sequence[str], env: Mapping[str, str], own: Nodes) -> NoReturn:
    """Run a server of several nodes until it ends, or another node does.

    vLLM's head finds out at its next request, and may wait for an answer for minutes; the others
    wait forever.
    """
    process = subprocess.Popen(argv, env=env)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: process.send_signal(number))
    gone: list[str] = []

    def stop(who: str) -> None:
        gone.append(who)
        say(f"{who} is gone; without it nothing is served, so node {own.rank} ends")
        process.terminate()
        time.sleep(GRACE)
        process.kill()

    watch = followers if own.rank == 0 else head
    threading.Thread(target=watch, args=(own, stop), daemon=True).start()
    # not `wait`: Python handles signals in this thread alone, and one that another thread got does
    # not wake it
    while (code := process.poll()) is None:
        time.sleep(0.2)
    sys.exit(1 if gone else code if code >= 0 else 128 - code)


def head(own: Nodes, gone: Callable[[str], None]) -> None:
    """Say who this node is to the head, as soon as there is one, and wait for its end."""
    while True:
        try:
            connection = socket.create_connection((own.address, own.port), timeout=INTERVAL)
            break
        except OSError:
            time.sleep(1)
    with connection:
        with suppress(OSError):  # a head that ends at once is gone, too
            connection.sendall(GREETING + b"%d\n" % own.rank)
        listen(connection)
    gone(f"the head, {own.address},")


def followers(own: Nodes, gone: Callable[[str], None]) -> None:
    """Wait for the other nodes, and for the end of any of them."""

    def attended(connection: socket.socket, address: str) -> None:
        with connection:
            said = listen(connection)
            if not said.startswith(GREETING):  # anybody may connect to a port
                return
            who = f"node {said[len(GREETING) :].decode(errors='replace').strip()}, {address},"
            say(f"{who} is here")
            while listen(connection):
                pass
        gone(who)

    try:
        family = socket.getaddrinfo(own.address, own.port)[0][0]
        server = socket.create_server((own.address, own.port), family=family)
    except OSError as error:
        say(f"nodes do not watch each other: {own.address}:{own.port}: {error}")
        return
    while True:
        try:
            connection, (address, *_) = server.accept()
        except OSError:  # it ended before it was accepted
            time.sleep(1)
            continue
        threading.Thread(target=attended, args=(connection, address), daemon=True).start()


def listen(connection: socket.socket) -> bytes:
    """What the other side says next; nothing once it has ended, or no longer answers."""
    try:
        connection.settimeout(None)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        keep = {"TCP_KEEPIDLE": IDLE, "TCP_KEEPINTVL": INTERVAL, "TCP_KEEPCNT": PROBES}
        for option, value in keep.items():
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        return connection.recv(64)
    except OSError:
        return b""


def say(text: str) -> None:
    """Write a line to the container's log."""
    print(f"entrypoint: {text}", file=sys.stderr)
