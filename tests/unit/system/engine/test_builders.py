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


@pytest.mark.parametrize(
    ("out", "code"), [("", 1), ("Name: fleet\nDriver: remote\nStatus: inactive\n", 0)]
)
def test_a_builder_that_does_not_answer_is_an_error_that_lists_the_others(
    engine: Engine, docker: FakeDocker, out: str, code: int
) -> None:
    docker.answer("buildx inspect", out=out, err="ERROR: no builder found", code=code)
    docker.answer("buildx ls", out='{"Name": "default"}\n{"Name": "default"}\n{"Name": "spark"}\n')
    with pytest.raises(SetupError) as caught:
        engine.builder("fleet")
    (problem,) = caught.value.problems
    assert problem.code == "no-builder"
    assert problem.what.endswith("ERROR: no builder found")
    assert "default, spark;" in problem.fix
