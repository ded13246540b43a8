"""Builds: one bake with its output line by line, and a command line that does the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.docker import FakeDocker

from imagefactory.errors import SetupError
from imagefactory.system.engine import Engine

pytestmark = pytest.mark.programs

FILE = Path("/build/docker-bake.json")


def test_a_bake_hands_over_every_line_and_its_exit_code(engine: Engine, docker: FakeDocker) -> None:
    docker.answer("buildx bake", out='{"vertexes": []}\n', err="ERROR: no\n", code=1)
    lines: list[str] = []
    assert engine.bake(FILE, ["a", "b"], on_line=lines.append, builder="far") == 1
    assert lines == ['{"vertexes": []}\n', "ERROR: no\n"]
    assert docker.calls == [f"buildx bake --builder far --file {FILE} --progress=rawjson a b"]


def test_a_cold_bake_that_makes_no_image(engine: Engine, docker: FakeDocker) -> None:
    docker.answer("buildx bake")
    engine.bake(
        FILE,
        ["a"],
        on_line=print,
        progress="plain",
        cached=False,
        overrides=["a.output=type=cacheonly"],
    )
    assert docker.calls == [
        f"buildx bake --file {FILE} --progress=plain a --no-cache --set a.output=type=cacheonly"
    ]


def test_the_docker_driver_makes_no_image_of_a_linked_target(
    engine: Engine, docker: FakeDocker
) -> None:
    docker.answer("buildx bake")
    text = docker.program.read_text()
    docker.program.write_text(text.replace("case", 'echo "$BUILDX_NO_DEFAULT_LOAD"\ncase', 1))
    lines: list[str] = []
    engine.bake(FILE, ["a"], on_line=lines.append)
    assert lines == ["1\n"]


def test_the_command_to_reproduce_a_bake_is_the_bake_with_output_for_people() -> None:
    engine = Engine(host="unix:///a b.sock", config="/config")
    assert engine.bake_command(FILE, ["a"], builder="far") == (
        "BUILDX_NO_DEFAULT_LOAD=1 docker --config /config --host 'unix:///a b.sock' "
        f"buildx bake --builder far --file {FILE} --progress=plain a"
    )


def test_a_build_without_a_tag_makes_no_image(engine: Engine, docker: FakeDocker) -> None:
    docker.answer("buildx build")
    engine.build(Path("/context"), cached=False)
    engine.build(Path("/context"), tag="made:1")
    cold, tagged = docker.calls
    assert cold.endswith("--output type=cacheonly --no-cache /context")
    assert tagged.endswith("--load --tag made:1 /context")


def test_a_build_that_fails_shows_its_last_lines(engine: Engine, docker: FakeDocker) -> None:
    docker.answer("buildx build", err="step\nERROR: no\n", code=1)
    with pytest.raises(SetupError, match="ERROR: no") as caught:
        engine.build(Path("/context"), tag="made:1")
    assert caught.value.problems[0].code == "build-failed"


def test_the_cache_is_pruned_record_by_record_or_by_kind(
    engine: Engine, docker: FakeDocker
) -> None:
    docker.answer("buildx prune")
    engine.forget_cache(["a", "b"])
    engine.prune_cache(only="type=regular")
    engine.prune_cache()
    assert docker.calls == [
        'buildx prune --all --force --filter id="^(a|b)$"',
        "buildx prune --all --force --filter type=regular",
        "buildx prune --all --force",
    ]
