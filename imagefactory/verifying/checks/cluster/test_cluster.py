"""Clusters: what their probe finds, and the faults that turn their checks red."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.image_tree import ImageTree, needs_gcc
from support.verify_fakes import CPU, Good, wheel
from support.verify_faults import Fault, red

from imagefactory.locking.lock import Resolution
from imagefactory.verifying.checks.cluster import probe
from imagefactory.verifying.receipt import Outcome
from imagefactory.verifying.subject import Ran


def good(locked: Resolution) -> dict[str, Any]:
    """The facts of a good image."""
    if locked.channel == "cpu":
        return {"rdma": {"installed": False}, "nccl": None, "seconds": 0.1}
    return {
        "rdma": {
            "installed": True,
            "errors": {},
            "drivers": ["mlx4", "mlx5"],
            "missing": [],
            "devices": None,
            "errno": 38,
        },
        "nccl": None,
        "seconds": 0.1,
    }


def lock_nccl(image: Good, version: str = "2.30.7") -> None:
    """Let the lock have an NCCL."""
    assert image.resolution is not None
    locked = wheel("nvidia-nccl-cu13", version)
    image.resolution = replace(image.resolution, wheels=(*image.resolution.wheels, locked))


def start_ray(image: Good, run: Ran) -> None:
    """Let the image have Ray, whose cluster ends like that."""
    image.facts["entrypoint"]["ray"] = True
    image.runs["ray-cluster"] = run


def want_rdma(image: Good) -> None:
    """Let the matrix want RDMA, and the image lack it."""
    assert image.expected is not None
    cell = image.expected.cell
    base = replace(cell.flavor.base, packages=("libibverbs1",))
    cell = replace(cell, flavor=replace(cell.flavor, base=base))
    image.expected = replace(image.expected, cell=cell)
    image.facts["cluster"]["rdma"] = {"installed": False, "errors": {}, "drivers": []}


def rdma(**changes: Any) -> Any:
    return lambda image: image.facts["cluster"]["rdma"].update(changes)


def nccl(found: Any) -> Any:
    def breaks(image: Good) -> None:
        lock_nccl(image)
        image.facts["cluster"]["nccl"] = found

    return breaks


FAULTS = (
    Fault(
        check="cluster-rdma",
        name="a library that does not open",
        breaks=rdma(errors={"libibverbs.so.1": "libnl-3.so.200: cannot open"}),
        says="libibverbs.so.1: libnl-3.so.200: cannot open",
    ),
    Fault(
        check="cluster-rdma",
        name="a library that is too old for NCCL",
        breaks=rdma(missing=["ibv_reg_dmabuf_mr@IBVERBS_1.12"]),
        says="libibverbs lacks ibv_reg_dmabuf_mr@IBVERBS_1.12",
    ),
    Fault(
        check="cluster-rdma",
        name="no driver of the cards",
        breaks=rdma(drivers=["mlx4"]),
        says="no driver mlx5",
    ),
    Fault(
        check="cluster-rdma",
        name="the search for devices fails",
        breaks=rdma(errno=12),
        says="ibv_get_device_list: Cannot allocate memory",
    ),
    Fault(
        check="cluster-rdma",
        name="the matrix wants RDMA and the image has none",
        breaks=want_rdma,
        says="the image lacks libibverbs1",
    ),
    Fault(
        check="cluster-nccl",
        name="another version",
        breaks=nccl({"version": "2.28.9", "error": None}),
        says="NCCL is 2.28.9, and not 2.30.7",
    ),
    Fault(
        check="cluster-nccl",
        name="it does not load",
        breaks=nccl({"version": None, "error": "undefined symbol"}),
        says="does not load: undefined symbol",
    ),
    Fault(check="cluster-nccl", name="it is not there", breaks=nccl(None), says="load: no library"),
    Fault(
        check="cluster-ray",
        name="the worker does not find the head",
        breaks=lambda image: start_ray(image, Ran(code=0, out="1\n", err="")),
        says="a head and a worker: exit 0: 1",
    ),
    Fault(
        check="cluster-ray",
        name="the head does not start",
        breaks=lambda image: start_ray(image, Ran(code=124, out="", err="no answer")),
        says="a head and a worker: exit 124: no answer",
    ),
)


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_check_goes_red_for_its_fault_and_says_why(fault: Fault) -> None:
    assert fault.says in red(fault)


def test_images_that_have_what_a_cluster_needs_pass() -> None:
    image = Good()
    nccl({"version": "2.30.7", "error": None})(image)
    start_ray(image, Ran(code=0, out="2\n", err=""))
    for mode in ("ray-head", "ray-worker"):
        image.runs[mode] = Ran(code=0, out='["ray", "start"]', err="")
    found = {name: one for name, one in image.results().items() if name.startswith("cluster-")}
    assert {one.outcome for one in found.values()} == {Outcome.PASS}
    assert "no RDMA in this kernel" in found["cluster-rdma"].detail


def test_an_image_for_one_machine_needs_none_of_it() -> None:
    results = Good(torch=CPU).results()
    for name, what in (("rdma", "RDMA"), ("nccl", "NCCL"), ("ray", "Ray")):
        found = results[f"cluster-{name}"]
        assert (found.outcome, found.detail) == (Outcome.PASS, f"no {what} in this image")


def test_where_ray_is_emulated_it_is_not_started() -> None:
    image = Good()
    image.facts["entrypoint"]["ray"] = True
    found = image.results()["cluster-ray"]
    assert (found.outcome, found.required) == (Outcome.SKIP, False)


def test_a_library_that_is_not_there_does_not_open() -> None:
    assert "no-such-library" in str(probe.opening("no-such-library.so.1"))
    assert probe.opening("libc.so.6") is None
    assert "ibv_reg_mr@IBVERBS_1.1" in probe.missing(ctypes.CDLL("libc.so.6"))
    assert probe.devices(ctypes.CDLL("libc.so.6")) == (None, 0)
    assert probe.nccl(Path("/nonexistent")) is None


@needs_gcc
@pytest.mark.programs
def test_nccl_says_its_version_and_libibverbs_its_devices(tmp_path: Path) -> None:
    image = ImageTree(tmp_path)
    image.library(probe.NCCL, "int ncclGetVersion(int *n) { *n = 23007; return 0; }")
    assert image.facts("cluster")["nccl"] == {"version": "2.30.7", "error": None}
    listing = (
        "int list; void *ibv_get_device_list(int *n) { *n = 3; return &list; }"
        "void ibv_free_device_list(void *l) {}"
    )
    verbs = ctypes.CDLL(str(image.library("verbs.so", listing)))
    assert probe.devices(verbs) == (3, 0)
