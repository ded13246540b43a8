"""Buildx builders: what they run natively, and what is said of one that does not answer."""

from __future__ import annotations

import pytest
from support.docker import FakeDocker

from imagefactory.errors import SetupError
from imagefactory.system.engine import Builder, Engine
from imagefactory.system.platforms import Platform

pytestmark = pytest.mark.programs

# what `docker buildx inspect` writes of a builder with two nodes
NODES = """\
Name:          fleet
Driver:        docker-container

Nodes:
Name:                  fleet0
Endpoint:              unix:///var/run/docker.sock
Status:                running
Platforms:             linux/amd64*, linux/amd64/v2, linux/386
Name:                  fleet1
Endpoint:              ssh://me@spark
Status:                running
Platforms:             linux/arm64, linux/arm/v7
"""


def test_every_node_of_a_builder_has_a_platform_of_its_own(
    engine: Engine, docker: FakeDocker
) -> None:
    docker.answer("buildx inspect --bootstrap fleet", out=NODES)
    found = engine.builder("fleet")
    assert (found.name, found.driver, found.platform, found.platforms) == (
        "fleet",
        "docker-container",
        "linux/amd64",
        ("linux/amd64", "linux/arm64"),
    )


def test_the_engines_own_store_is_seen_by_its_own_driver_only() -> None:
    assert not Builder(name="default", driver="docker", platforms=(Platform.AMD64,)).has_own_store
    assert Builder(name="far", driver="remote", platforms=(Platform.ARM64,)).has_own_store


# of two pods of a cluster that run and do not let anybody in, as buildx 0.13 writes it
PODS = """\
Name:          pods
Driver:        kubernetes

Nodes:
Name:           pods0
Endpoint:       kubernetes:///pods?deployment=buildkit-1546a9e4
Driver Options: namespace="build" replicas="2"
Error:          listing workers: context deadline exceeded

Name:           pods0
Endpoint:       kubernetes:///pods?deployment=buildkit-1546a9e4
Error:          listing workers: context deadline exceeded
Name:           pods1
Error:          listing workers: refused
"""
REFUSED = """\
#1 [internal] booting buildkit
#1 ERROR: error for bootstrap "pods0": Get "https://k:6443/apis": connect: connection refused
------
ERROR: error for bootstrap "pods0": Get "https://k:6443/apis": connect: connection refused
"""


@pytest.mark.parametrize(
    ("out", "err", "code", "why"),
    [
        ("", "", 1, "buildx wrote nothing"),
        ("Name: pods\nDriver: remote\nStatus: inactive\n", "", 0, "Status: inactive"),
        (
            "",
            REFUSED,
            1,
            'error for bootstrap "pods0": Get "https://k:6443/apis": connect: connection refused',
        ),
        (
            PODS,
            "ERROR: no exec\n",
            0,
            "pods0: listing workers: context deadline exceeded; pods1: listing workers: refused",
        ),
    ],
)
def test_a_builder_that_does_not_answer_is_an_error_with_the_reason(
    engine: Engine, docker: FakeDocker, out: str, err: str, code: int, why: str
) -> None:
    docker.answer("buildx inspect", out=out, err=err, code=code)
    docker.answer("buildx ls", out='{"Name": "default"}\n{"Name": "pods"}\n')
    with pytest.raises(SetupError) as caught:
        engine.builder("pods")
    (problem,) = caught.value.problems
    assert problem.code == "no-builder"
    assert problem.what == f"the builder pods does not answer: {why}"
    assert "start its machine or cluster" in problem.fix


def test_a_builder_that_there_is_not_is_an_error_that_lists_the_others(
    engine: Engine, docker: FakeDocker
) -> None:
    docker.answer("buildx inspect", err='ERROR: no builder "fleet" found', code=1)
    docker.answer("buildx ls", out='{"Name": "default"}\n{"Name": "default"}\n{"Name": "spark"}\n')
    with pytest.raises(SetupError) as caught:
        engine.builder("fleet")
    (problem,) = caught.value.problems
    assert (problem.code, problem.what) == ("no-builder", "there is no builder fleet")
    assert "default, spark;" in problem.fix
