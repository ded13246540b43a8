"""What the doctor finds on a DGX Spark, from what such machines have been reported to show."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import ROOT
from support.docker import FakeDocker
from support.matrices import write

from imagefactory.matrix import matrix
from imagefactory.planning.image_config import LABEL
from imagefactory.system.engine import ContainerMemory, Engine, ImageInfo
from imagefactory.upkeep import doctor, spark
from imagefactory.upkeep.finding import Finding

RECORDED = tomllib.loads((ROOT / "tests" / "data" / "spark.toml").read_text())
CLOCKS = "--query-gpu=clocks.sm,clocks.max.sm,power.draw,power.limit,utilization.gpu"
PROCESSES = "--query-compute-apps=pid,process_name,used_memory"
NAME, FAMILY = "sys/class/dmi/id/product_name", "sys/class/dmi/id/product_family"
MEMORY = "proc/meminfo"
CONTAINER = "3f" * 32
DRIVERS = {"CUDA 13.0": "580.65.06"}


def examined(
    folder: Path,
    changes: Sequence[tuple[str, str, Any]] = (),
    drivers: dict[str, str] = DRIVERS,
    containers: Sequence[ContainerMemory] = (),
) -> dict[str, Finding]:
    """The findings on the recorded machine, with some of its entries changed; None removes one."""
    shown = deepcopy(RECORDED)
    for part, key, value in changes:
        shown[part][key] = value
    for path, text in shown["files"].items():
        if text is not None:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text + "\n")
    for name, values in shown["interfaces"].items():
        if values is not None:
            address, vendor, state, mtu = values
            device = folder / "sys/devices" / address
            interface = folder / "sys/class/net" / name
            device.mkdir(parents=True)
            interface.mkdir(parents=True)
            (interface / "device").symlink_to(device)
            for file, text in (("device/vendor", vendor), ("operstate", state), ("mtu", mtu)):
                (interface / file).write_text(text + "\n")
    machine = spark.Machine(root=folder, smi=lambda query, _: shown["smi"].get(query))
    return {one.name: one for one in spark.examine(machine, drivers, lambda: containers)}


def test_a_spark_in_order_needs_nothing_done(tmp_path: Path) -> None:
    found = examined(tmp_path)
    assert {name: one.seen for name, one in found.items()} == {
        "spark": "NVIDIA_DGX_Spark, 1 GB10",
        "driver": "580.173.02 runs CUDA 13.0",
        "memory": "113.1 of 121.7 GiB available: at most --gpu-memory-utilization 0.92",
        "page cache": "8.0 GiB, which CUDA does not count as free",
        "swap": "none",
        "held by others": "nothing",
        "clocks": "2405 of 3003 MHz at 0 % load, 11.17 W, no power limit reported",
        "ConnectX port 0": "no link (enp1s0f0np0 and enP2p1s0f0np0)",
        "ConnectX port 1": "enp1s0f1np1 and enP2p1s0f1np1 up, MTU 9000",
        "RDMA": "rocep1s0f0 down, rocep1s0f1 active, roceP2p1s0f0 down, roceP2p1s0f1 active",
    }
    assert {one.health for one in found.values()} == {"good"}


def _meminfo(**sizes: int) -> tuple[str, str, str]:
    """A change of ``/proc/meminfo``, in GiB."""
    return "files", MEMORY, "\n".join(f"{name}: {size << 20} kB" for name, size in sizes.items())


@pytest.mark.parametrize(
    ("name", "changes", "seen", "remedy"),
    [
        (
            "driver",
            [("smi", "--query-gpu=name,driver_version", None)],
            "nvidia-smi finds no GB10",
            "install NVIDIA's driver",
        ),
        (
            "driver",
            [("smi", "--query-gpu=name,driver_version", "NVIDIA GB10, 575.51\n")],
            "575.51 runs nothing of the matrix; CUDA 13.0 needs 580.65.06",
            "upgrade the driver",
        ),
        (
            "memory",
            [_meminfo(MemTotal=120, MemFree=20, MemAvailable=60)],
            "60.0 of 120.0 GiB available: at most --gpu-memory-utilization 0.50",
            "stop what holds memory",
        ),
        (
            "page cache",
            [_meminfo(MemTotal=120, MemFree=20, MemAvailable=60)],
            "40.0 GiB",
            "drop_caches",
        ),
        ("memory", [("files", MEMORY, None)], "/proc/meminfo says nothing", "outside"),
        (
            "swap",
            [_meminfo(MemTotal=120, MemFree=110, MemAvailable=110, SwapTotal=16, SwapFree=16)],
            "0.0 of 16.0 GiB used, swappiness 60",
            "sudo sysctl vm.swappiness=1 ",
        ),
        (
            "swap",
            [
                _meminfo(MemTotal=120, MemFree=3, MemAvailable=4, SwapTotal=16, SwapFree=10),
                ("files", "proc/sys/vm/swappiness", "1"),
            ],
            "6.0 of 16.0 GiB used, swappiness 1",
            "sudo swapoff -a && sudo swapon -a",
        ),
        (
            "held by others",
            [("smi", PROCESSES, "3150, /opt/python3, 1318\n6330, sglang::scheduler, [N/A]\n")],
            "python3 (process 3150): 1.3 GiB",
            "kill 3150",
        ),
        (
            "clocks",
            [("smi", CLOCKS, "611, 3003, 14.2, [N/A], 96\n")],
            "611 of 3003 MHz at 96 % load",
            "unplug the power supply",
        ),
        (
            "ConnectX port 1",
            [("interfaces", "enP2p1s0f1np1", ["0002:01:00.1", "0x15b3", "down", "9000"])],
            "enp1s0f1np1 up, MTU 9000; enP2p1s0f1np1 down: half of the port's speed",
            "give enP2p1s0f1np1 an address",
        ),
        (
            "ConnectX port 1",
            [("interfaces", "enp1s0f1np1", ["0000:01:00.1", "0x15b3", "up", "1500"])],
            "up, MTU 1500 and 9000",
            "sudo ip link set enp1s0f1np1 mtu 9000, at both ends",
        ),
        (
            "RDMA",
            [("files", path, None) for path in RECORDED["files"] if "infiniband" in path],
            "no device",
            "modprobe mlx5_ib",
        ),
        (
            "RDMA",
            [("files", "dev/infiniband/uverbs0", None)],
            "but nothing in /dev/infiniband",
            "modprobe ib_uverbs",
        ),
    ],
)
def test_each_fault_is_found_and_has_a_remedy(
    name: str, changes: Sequence[tuple[str, str, Any]], seen: str, remedy: str, tmp_path: Path
) -> None:
    finding = examined(tmp_path, changes)[name]
    assert seen in finding.seen
    assert remedy in finding.remedy
    assert finding.health == "note"


def test_what_a_gpu_process_holds_counts_for_its_container(tmp_path: Path) -> None:
    changes = [
        ("smi", PROCESSES, "6330, VLLM::EngineCore, 96073\n"),
        ("files", "proc/6330/cgroup", f"0::/system.slice/docker-{CONTAINER}.scope"),
    ]
    containers = [
        ContainerMemory(id=CONTAINER, name="qwen", bytes=3 << 30),
        ContainerMemory(id="4a" * 32, name="small", bytes=5 << 20),
    ]
    found = examined(tmp_path, changes, containers=containers)["held by others"]
    assert (found.seen, found.remedy) == (
        "container qwen: 96.8 GiB",
        "what is not wanted: docker stop qwen",
    )


def test_an_idle_gpu_may_be_slow_and_a_port_without_a_cable_turned_off(tmp_path: Path) -> None:
    interfaces = [("interfaces", name, None) for name in RECORDED["interfaces"]]
    found = examined(tmp_path, [("smi", CLOCKS, "208, 3003, 3.9, [N/A], 0\n"), *interfaces])
    assert {found["clocks"].health, found["ConnectX"].health} == {"good"}
    assert "RDMA" not in found


@pytest.mark.parametrize(
    ("name", "family", "gpu", "is_one"),
    [
        ("NVIDIA_DGX_Spark", "", None, True),
        ("30KL0005GF", "DGX Spark", None, True),
        ("Dell Pro Max with GB10 FCM1253", "", None, True),
        ("GX10", "", "NVIDIA GB10, 580.95.05\n", True),
        ("Standard PC (Q35 + ICH9, 2009)", "", "NVIDIA H200, 580.95.05\n", False),
        ("", "", None, False),
    ],
)
def test_a_spark_is_recognized_by_its_gpu_or_by_what_the_firmware_says(
    name: str, family: str, gpu: str | None, is_one: bool, tmp_path: Path
) -> None:
    named = [("files", NAME, name), ("files", FAMILY, family)]
    found = examined(tmp_path, [*named, ("smi", "--query-gpu=name,driver_version", gpu)])
    assert ("memory" in found) == is_one
    if not is_one:
        (only,) = found.values()
        assert only.seen.startswith(f"no DGX Spark ({name}")


def test_drivers_are_those_that_the_cells_of_the_matrix_need(tmp_path: Path) -> None:
    declared = matrix.load(write(tmp_path))
    assert doctor.drivers(declared) == {"CUDA 13.0": "580.65.06", "flavor gb10": "580.95"}
    assert doctor.drivers(None) == {"CUDA 13.0": "580.65.06"}


def test_images_of_no_cell_are_old_but_not_further_names_of_current_ones(tmp_path: Path) -> None:
    declared = matrix.load(write(tmp_path))
    current, alias, old = declared.cells[0].tag, "example/vllm:nightly", "example/vllm:old"
    images = {
        ref: ImageInfo(
            ref=ref,
            digest=digest,
            layers=(),
            platform="linux/arm64",
            labels={f"{LABEL}.build-key": "x"},
            env={},
            size=9 << 30,
        )
        for ref, digest in ((current, "sha256:1"), (alias, "sha256:1"), (old, "sha256:2"))
    }
    engine: Any = SimpleNamespace(
        names=lambda _: [*images],
        find_images=lambda refs: {ref: images[ref] for ref in refs if ref in images},
    )
    (finding,) = doctor._old_images(engine, declared)
    assert (finding.seen, finding.health) == ("1 of no cell, up to 9 GiB", "note")
    del images[old]
    assert doctor._old_images(engine, declared) == []


@pytest.mark.programs
def test_the_engine_says_what_its_containers_hold(tmp_path: Path) -> None:
    docker = FakeDocker(tmp_path)
    docker.answer("stats", out=f"{CONTAINER}\tqwen\t1.5GiB / 119.6GiB\nbad\n")
    (found,) = Engine(binary=str(docker.program)).memory_in_use()
    assert found == ContainerMemory(id=CONTAINER, name="qwen", bytes=3 << 29)
