"""A Ray cluster of two containers: it comes up, or ends, or says nothing, and that is a verdict."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import pytest
from support.verify_fakes import image_info

from imagefactory.verifying import modes

STATUS = b"Active:\n 1 node_a\n%b\nPending:\n 1 node_x\n"
ONE, TWO = STATUS % b"", STATUS % b" 1 node_b"
Says = Callable[[socket.socket], None]


class Node:
    """A container of the cluster; ``says`` is the program that is asked for its status."""

    def __init__(self, says: Says, *, alive: bool = True) -> None:
        self._says, self._alive = says, alive
        self.removed = False

    @contextmanager
    def attach(self, argv: Sequence[str]) -> Iterator[socket.socket]:
        assert argv == ["ray", "status"]
        ours, theirs = socket.socketpair()
        program = threading.Thread(target=self._says, args=(theirs,), daemon=True)
        program.start()
        with ours:
            yield ours
        program.join()

    def alive(self) -> bool:
        return self._alive

    def logs(self, **_: Any) -> str:
        return "the last line\n"

    def remove(self) -> None:
        self.removed = True


class Engine:
    """Starts ``nodes``, one after the other."""

    def __init__(self, *nodes: Node) -> None:
        self.nodes, self.started = nodes, list[tuple[str, Any]]()

    def network(self) -> Any:
        return nullcontext("net")

    def start(self, _: str, argv: Sequence[str], **options: Any) -> Node:
        self.started.append((argv[0], options["env"]))
        return self.nodes[len(self.started) - 1]


def saying(*texts: bytes) -> Says:
    """The status at each look; the last one from then on."""
    left = list(texts)

    def say(peer: socket.socket) -> None:
        with peer:
            peer.sendall(left.pop(0) if len(left) > 1 else left[0])

    return say


def silent(peer: socket.socket) -> None:
    with peer:
        peer.recv(1)  # until the other end is closed


def trickling(peer: socket.socket) -> None:
    with peer, suppress(OSError):
        while True:
            peer.sendall(b".")
            time.sleep(0.005)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modes, "POLL", 0.01)
    monkeypatch.setattr(modes, "MODE_SECONDS", 0.05)


def ran(*nodes: Node, timeout: float = 5) -> tuple[Any, Engine]:
    engine: Any = Engine(*nodes)
    return modes.ray_cluster(engine, image_info(), timeout=timeout), engine


def test_the_worker_joins_once_the_head_is_there_and_both_are_removed() -> None:
    nodes = Node(saying(b"", ONE, ONE, TWO)), Node(silent)
    found, engine = ran(*nodes)
    assert (found.code, found.out) == (0, "2\n")
    joining = {"RAY_HEAD_ADDRESS": modes.RAY_HEAD}
    assert engine.started == [("ray-head", {}), ("ray-worker", joining)]
    assert all(node.removed for node in nodes)


def test_a_node_that_ends_is_a_failure_with_its_log() -> None:
    head = Node(saying(b"no cluster"), alive=False)
    found, _ = ran(head)
    assert (found.code, found.err[:30]) == (1, "the last line (0 of 2 nodes af")
    assert head.removed


@pytest.mark.parametrize("says", [silent, trickling, saying(ONE)])
def test_a_cluster_that_does_not_come_up_is_given_up(says: Says) -> None:
    head = Node(says)
    found, _ = ran(head, Node(silent), timeout=0.1)
    assert found.code == modes.TIMED_OUT
    assert head.removed
