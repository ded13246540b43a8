"""The container's entrypoint where one server has several nodes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import pytest
from support.entrypoint import ENTRYPOINT, MODEL, PROGRAM, argv, program, run

HEAD = {**MODEL, "NNODES": "2", "NODE_RANK": "0", "MASTER_ADDR": "10.0.0.1"}
FOLLOWER = {**HEAD, "NODE_RANK": "1"}
#: A vLLM that says what it is told, waits, and ends with 42 when it is asked to.
WAITS = """\
import json, os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(42))
print(json.dumps([sys.argv[1:], os.environ.get("IMAGEFACTORY_HEALTH")]), flush=True)
time.sleep(60)
"""


def declared(words: list[str], variables: Mapping[str, str] = {}) -> tuple[object, ...] | None:
    found: tuple[object, ...] | None = PROGRAM.nodes.declared(PROGRAM.serving(words), variables)
    return found


def test_nodes_differ_in_their_rank_and_only_the_head_has_an_api() -> None:
    head, follower = argv(env=HEAD), argv(env=FOLLOWER)
    assert head[-6:] == ["--nnodes", "2", "--node-rank", "0", "--master-addr", "10.0.0.1"]
    assert follower == [*head[:-3], "1", *head[-2:], "--headless"]
    assert argv(["--headless"], FOLLOWER).count("--headless") == 1
    assert "--headless" in argv(["-n", "2", "-r", "1", "--master-addr", "10.0.0.1"], MODEL)


def test_a_server_on_one_node_has_no_option_of_several() -> None:
    assert not {"--nnodes", "--node-rank", "--master-addr", "--master-port"} & {*argv(env=MODEL)}
    assert declared(argv(env=MODEL)) is None
    assert declared(["bash", "--nnodes", "2"]) is None


@pytest.mark.parametrize(
    ("given", "variables", "expected"),
    [
        (["--nnodes=2", "--node-rank=1", "--master-addr", "a"], {}, (2, 1, "a", 29502)),
        (["-n", "3", "--master_addr", "a"], {"NODE_WATCH_PORT": "7"}, (3, 0, "a", 7)),
        (["--nnodes", "2", "--master-addr", "a"], {"NODE_WATCH_PORT": "0"}, None),
        (["--nnodes", "1", "--master-addr", "a"], {}, None),
    ],
)
def test_several_nodes_watch_each_other_unless_they_are_told_not_to(
    given: list[str], variables: dict[str, str], expected: tuple[int, int, str, int] | None
) -> None:
    assert declared(["vllm", "serve", "m", *given], variables) == expected


@pytest.mark.parametrize(
    ("given", "cause"),
    [
        (["--nnodes", "2"], "MASTER_ADDR"),
        (["--nnodes", "two", "--master-addr", "a"], "'two'"),
        (["--nnodes", "2", "--node-rank", "x", "--master-addr", "a"], "'x'"),
    ],
)
def test_nodes_that_cannot_find_each_other_are_an_error(given: list[str], cause: str) -> None:
    with pytest.raises(PROGRAM.UsageError, match=cause):
        declared(["vllm", "serve", "m", *given])


def test_a_node_without_an_api_has_no_health_to_ask_for() -> None:
    for env, there in ((HEAD, True), (FOLLOWER, False)):
        words = argv(env={**env, "MASTER_ADDR": "127.0.0.1"})
        assert (PROGRAM.HEALTH in PROGRAM.environment(words, {})) is there


def test_nodes_talk_on_the_way_to_the_head_unless_they_are_told_another() -> None:
    words = ["vllm", "serve", "m", "--nnodes", "2", "--master-addr", "127.0.0.1"]
    found = PROGRAM.environment(words, {"NCCL_SOCKET_IFNAME": "eth9"})
    assert (found["VLLM_HOST_IP"], found["GLOO_SOCKET_IFNAME"]) == ("127.0.0.1", "lo")
    assert found["NCCL_SOCKET_IFNAME"] == "eth9"
    assert PROGRAM.nodes.interface(PROGRAM.serving(words))["NCCL_SOCKET_IFNAME"] == "=lo"
    assert "VLLM_HOST_IP" not in PROGRAM.environment(words[:3], {})


def test_a_head_without_an_address_is_an_error_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(PROGRAM.nodes, "RESOLVING", -1.0)
    with pytest.raises(PROGRAM.UsageError, match="the head, no such host, cannot be found"):
        PROGRAM.nodes.interface({"nnodes": "2", "master-addr": "no such host"})


class Node:
    """A node whose vLLM waits; its files are in ``folder``."""

    def __init__(self, rank: int, port: int, folder: Path) -> None:
        env = {**HEAD, "NODE_RANK": str(rank), "MASTER_ADDR": "127.0.0.1"}
        env |= {"NODE_WATCH_PORT": str(port), "PATH": f"{folder}:{os.environ['PATH']}"}
        self.process = subprocess.Popen(
            [sys.executable, "-Bu", str(ENTRYPOINT)],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.said = json.loads(self.process.stdout.readline())

    def ends(self) -> tuple[int, str]:
        """Its exit code, and what it wrote."""
        _, written = self.process.communicate(timeout=60)
        return self.process.returncode, written


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Node, Node, int]]:
    """Two nodes that have found each other, and where they watch."""
    program(tmp_path, "vllm", WAITS)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with ExitStack() as ending:
        nodes = []
        for rank in (0, 1):
            nodes.append(Node(rank, port, tmp_path))
            ending.callback(nodes[-1].process.kill)
        assert nodes[0].process.stderr is not None
        assert nodes[0].process.stderr.readline() == "entrypoint: node 1, 127.0.0.1, is here\n"
        yield nodes[0], nodes[1], port
        for node in nodes:
            node.process.kill()
            node.process.communicate()


def say(port: int, words: bytes) -> None:
    """Connect to the head, say something and go."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(words)


@pytest.mark.programs
def test_a_node_ends_with_the_head_and_says_so(pair: tuple[Node, Node, int]) -> None:
    head, follower, port = pair
    assert head.said[1] == "http://127.0.0.1:8888/health"
    assert (follower.said[0][-1], follower.said[1]) == ("--headless", None)
    say(port, b"GET / HTTP/1.1\r\n\r\n")  # anybody may
    head.process.terminate()
    assert head.ends() == (42, "")  # vLLM's own code, for nobody was gone before
    code, said = follower.ends()
    assert (code, said.count("\n")) == (1, 1)
    assert "the head, 127.0.0.1, is gone; " in said


@pytest.mark.programs
def test_the_head_ends_with_any_other_node_and_names_it(pair: tuple[Node, Node, int]) -> None:
    head, follower, port = pair
    say(port, PROGRAM.nodes.GREETING + b"7\n")
    code, said = head.ends()
    assert code == 1
    assert "entrypoint: node 7, 127.0.0.1, is gone; " in said
    assert follower.ends()[0] == 1


class Reset:
    """A connection that the other side resets at once."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""

    def __getattr__(self, name: str) -> object:
        raise ConnectionResetError


def test_a_head_that_ends_while_a_node_says_who_it_is_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(PROGRAM.nodes.socket, "create_connection", lambda *_, **__: Reset())
    gone: list[str] = []
    PROGRAM.nodes.head(PROGRAM.nodes.Nodes(2, 1, "10.0.0.1", 7), gone.append)
    assert gone == ["the head, 10.0.0.1,"]


@pytest.mark.programs
def test_nodes_without_a_head_are_refused_before_anything_starts() -> None:
    done = run(env={**MODEL, "NNODES": "2"})
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "MASTER_ADDR" in done.stderr
