"""What nodes say about themselves, and how it is judged."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.program import Run, run

from imagefactory.cluster import cluster as clusters
from imagefactory.cluster import declaration, judging, looking
from imagefactory.cluster.cluster import Member
from imagefactory.cluster.looking import Facts
from imagefactory.errors import SetupError
from imagefactory.examples import examples
from imagefactory.system import ssh
from imagefactory.system.engine import Engine, ImageInfo
from imagefactory.upkeep.finding import Finding, Health

__all__ = ["run"]
IMAGE = ImageInfo(
    ref="vllm:1",
    digest="sha256:" + "a" * 64,
    layers=("sha256:1", "sha256:2"),
    platform="linux/arm64",
    labels={"io.imagefactory.pin.cuda": "13.0"},
    env={"PATH": "/bin"},
    size=1,
)
#: What the script writes on the first node of the example.
SAID = """\
[driver]
580.95.05
[memory]
MemTotal:       125000000 kB
MemFree:        110000000 kB
MemAvailable:   118000000 kB
SwapTotal:       16000000 kB
SwapFree:        16000000 kB
[swappiness]
1
[interfaces]
enP2p1s0f1np1 up 9000
enp1s0f1np1 up 9000
lo unknown 65536
wlan0 down 1500
[addresses]
1: lo    inet 127.0.0.1/8 scope host lo\\       valid_lft forever preferred_lft forever
3: enp1s0f1np1    inet 192.168.100.10/24 brd 192.168.100.255 scope global enp1s0f1np1
3: enp1s0f1np1    inet6 fe80::1/64 scope link
4: enP2p1s0f1np1    inet 192.168.200.10/24 scope global enP2p1s0f1np1
[rdma]
roceP2p1s0f1 4: ACTIVE
rocep1s0f1 4: ACTIVE
[verbs]
rdma_cm
uverbs0
[clock]
1000.4
"""


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> tuple[Member, ...]:
    path = tmp_path_factory.mktemp("cluster") / "cluster.yaml"
    path.write_text(examples.cluster())
    return clusters.members(declaration.load(path), "vllm:1")


def facts(said: str = SAID) -> Facts:
    return looking.parse(said, engine="28.5.2", image=IMAGE, asked=(1000.0, 1000.8))


def judged(members: tuple[Member, ...], other: Facts, first: Facts | None = None) -> list[Finding]:
    """What is found about the second node, which has the address of the first."""
    second = replace(members[1], node=members[0].node)
    found = judging.judge([members[0], second], [first or facts(), other])
    return list(found[1].findings)


def test_a_node_in_order_has_nothing_but_good_findings(members: tuple[Member, ...]) -> None:
    found = judged(members, facts())
    assert {finding.health for finding in found} == {Health.GOOD}
    assert not any(finding.remedy for finding in found)
    assert {finding.name: finding.seen for finding in found} == {
        "node": "Docker 28.5.2",
        "image": "sha256:aaaaaaaaaaaa, 2 layers",
        "driver": "580.95.05, the image needs 580.65.06",
        "address": "192.168.100.10 on enp1s0f1np1",
        "enp1s0f1np1": "up, MTU 9000",
        "enP2p1s0f1np1": "up, MTU 9000",
        "rocep1s0f1": "active",
        "roceP2p1s0f1": "active",
        "memory": "112.5 of 119.2 GiB available",
        "swap": "0.0 of 15.3 GiB used, swappiness 1",
        "clock": "differs by 0.8 s at most",
    }


def without(section: str) -> Callable[[Facts], Facts]:
    start = SAID.index(f"[{section}]")
    end = SAID.find("\n[", start) + 1
    return lambda _: facts(SAID[:start] + SAID[end:])


def said(old: str, new: str) -> Callable[[Facts], Facts]:
    assert old in SAID
    return lambda _: facts(SAID.replace(old, new))


def image(**changes: Any) -> Callable[[Facts], Facts]:
    return lambda found: replace(found, image=replace(IMAGE, **changes))


NEWER = {"io.imagefactory.pin.cuda": "13.2"}
#: What differs on a node, and what is then found: name, severity, a part of the text, of the remedy.
FAULTS: list[tuple[Callable[[Facts], Facts], str, Health, str, str]] = [
    (lambda f: replace(f, image=None), "image", Health.BAD, "missing", "vllm:1"),
    (image(layers=("sha256:1",)), "image", Health.BAD, "another content", "vllm:1"),
    (image(env={"PATH": "/"}), "image", Health.BAD, "another content", "vllm:1"),
    (image(platform="linux/amd64"), "image", Health.BAD, "another content", "vllm:1"),
    (image(labels=NEWER), "driver", Health.BAD, "the image needs 595.45.04", "upgrade"),
    (without("driver"), "driver", Health.BAD, "finds no GPU", "install"),
    (said("580.95.05", "580.99"), "driver", Health.NOTE, "580.95.05 on the first", "upgrade"),
    (said("0.10/24", "0.12/24"), "address", Health.BAD, "no interface has", "netplan"),
    (without("addresses"), "address", Health.BAD, "no interface has", "netplan"),
    (
        said("3: enp1s0f1np1    inet 192", "2: wlan0    inet 192"),
        *("address", Health.BAD, "is on wlan0, not on enp1s0f1np1", "interfaces: [wlan0]"),
    ),
    (said("\nenp1s0f1np1 up", "\neth9 up"), "enp1s0f1np1", Health.BAD, "no such", "eth9"),
    (said("np1 up 9000\nlo", "np1 down 9000\nlo"), "enp1s0f1np1", Health.BAD, "down", "cable"),
    (said("4: enP2p1s0f1np1", "4: x"), "enP2p1s0f1np1", Health.BAD, "no address", "netplan"),
    (said("np1 up 9000\nlo", "np1 up 1500\nlo"), "enp1s0f1np1", Health.NOTE, "9000", "mtu 9000"),
    (without("verbs"), "RDMA", Health.BAD, "nothing in /dev/infiniband", "ib_uverbs"),
    (without("rdma"), "rocep1s0f1", Health.BAD, "no such RDMA device", "mlx5_ib"),
    (said("rocep1s0f1 4: ACTIVE", "rocep1s0f1 1: DOWN"), "rocep1s0f1", Health.BAD, "down", "cable"),
    (said("118000000", "90000000"), "memory", Health.BAD, "95.4 GiB are wanted", "0.72"),
    (said("110000000", "50000000"), "page cache", Health.NOTE, "64.8 GiB", "drop_caches"),
    (said("SwapFree:        16", "SwapFree:        12"), "swap", Health.NOTE, "3.8 of", "swapoff"),
    (said("]\n1\n", "]\n60\n"), "swap", Health.NOTE, "swappiness 60", "vm.swappiness=1"),
    (said("1000.4", "1004.4"), "clock", Health.BAD, "differs by +3 s", "set-ntp"),
    (said("1000.4", "950.4"), "clock", Health.BAD, "differs by -49 s", "set-ntp"),
]


@pytest.mark.parametrize(("change", "name", "health", "seen", "remedy"), FAULTS)
def test_each_fault_of_a_node_is_found_with_a_remedy(
    members: tuple[Member, ...],
    change: Callable[[Facts], Facts],
    name: str,
    health: Health,
    seen: str,
    remedy: str,
) -> None:
    found = {finding.name: finding for finding in judged(members, change(facts()))}[name]
    assert found.health is health
    assert seen in found.seen
    assert remedy in found.remedy


def test_rdma_that_is_there_but_not_declared_is_pointed_out(members: tuple[Member, ...]) -> None:
    head = replace(members[0], node=replace(members[0].node, rdma=()))
    (found,) = (f for f in judging.judge([head], [facts()])[0].findings if f.name == "RDMA")
    assert (found.health, "rdma: [roceP2p1s0f1, rocep1s0f1]" in found.remedy) == (Health.NOTE, True)


def test_a_driver_that_an_override_accepts_is_accepted(members: tuple[Member, ...]) -> None:
    labels = {**NEWER, "io.imagefactory.driver-override": "580.95: runs here"}
    accepted = image(labels=labels)(facts())
    found = {finding.name: finding for finding in judged(members, accepted, accepted)}
    assert found["driver"].health is Health.GOOD


@pytest.mark.parametrize(
    ("words", "health"),
    [
        (("--gpu-memory-utilization-gb", "112"), Health.GOOD),
        (("--gpu-memory-utilization-gb", "113"), Health.BAD),
        (("--gpu-memory-utilization", "0.95"), Health.BAD),
        (("--gpu-memory-utilization", "x"), Health.GOOD),
        ((), Health.GOOD),
    ],
)
def test_memory_is_compared_with_what_the_server_takes(
    members: tuple[Member, ...], words: tuple[str, ...], health: Health
) -> None:
    head = replace(members[0], launch=replace(members[0].launch, command=words))
    found = {one.name: one for one in judging.judge([head], [facts()])[0].findings}
    assert found["memory"].health is health


def test_nodes_without_gpus_need_no_driver_and_no_share_of_memory(
    members: tuple[Member, ...],
) -> None:
    head = replace(members[0], launch=replace(members[0].launch, gpus=False))
    poor = facts(SAID.replace("118000000", "1000000").replace("580.95.05\n", ""))
    found = judging.judge([head], [poor])[0].findings
    assert {finding.health for finding in found} == {Health.GOOD}


def test_a_node_that_does_not_answer_has_a_row_and_the_others_are_judged(
    members: tuple[Member, ...], run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(member: Member, _: object) -> Facts:
        if member.rank == 0:
            raise ssh.unreachable("spark1", "Connection timed out")
        return facts(SAID.replace("192.168.100.10/", "192.168.100.11/"))

    monkeypatch.setattr(looking, "look", look)
    (tmp_path / "cluster.yaml").write_text(examples.cluster())
    done = run("cluster", "check", "--json", cwd=tmp_path)
    rows = json.loads(done.out)
    assert done.code == 3
    assert [row["seen"] for row in rows if row["host"] == "spark1"] == [
        "spark1: Connection timed out"
    ]
    assert {row["health"] for row in rows if row["host"] == "spark2"} == {"good"}


@pytest.mark.parametrize(("clock", "code"), [("1000.4", 0), ("1010.4", 1)])
def test_a_check_fails_if_something_is_wrong(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: str, code: int
) -> None:
    def look(member: Member, _: object) -> Facts:
        text = SAID.replace("192.168.100.10/", f"{member.node.address}/")
        return facts(text.replace("1000.4", clock) if member.rank else text)

    monkeypatch.setattr(looking, "look", look)
    (tmp_path / "cluster.yaml").write_text(examples.cluster())
    done = run("cluster", "check", cwd=tmp_path)
    assert done.code == code
    assert ("bad" in done.out) == bool(code)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("lo unknown 65536", "lo unknown many", "cannot be read: invalid literal"),
        ("125000000 kB", "9" * 5000 + " kB", "cannot be read: Exceeds the limit"),
        ("1000.4", "1000.%N", ""),  # as of a date that does not know nanoseconds
    ],
    ids=["mtu", "memory", "clock"],
)
def test_a_node_that_talks_nonsense_is_one_that_cannot_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, says: str
) -> None:
    (tmp_path / "cluster.yaml").write_text(examples.cluster())
    member, _ = clusters.members(declaration.load(tmp_path / "cluster.yaml"), "vllm:1")
    engine = SimpleNamespace(answers=lambda: "28.5.2", find_images=lambda _: {})
    monkeypatch.setattr(ssh, "run", lambda *_, **__: SAID.replace(old, new))
    (found,) = looking.everywhere(
        [member], lambda one: looking.look(one, lambda _: cast("Engine", engine))
    )
    assert isinstance(found, Facts) is not bool(says)
    if isinstance(found, SetupError):
        assert says in found.problems[0].what
        assert found.problems[0].code == "node-unreachable"
