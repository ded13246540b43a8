"""Building elsewhere: the remote driver against a real BuildKit.

And build caches in a real registry.
"""

from __future__ import annotations

import json
import secrets
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.e2e import factory

from imagefactory.system.engine import Engine

pytestmark = pytest.mark.e2e


@pytest.fixture
def own(project: Path, engine: Engine) -> Iterator[Path]:
    """A project whose images have a repository of their own, and one line more.

    So that something is to be built. The images are removed in the end.
    """
    file = project / "matrix.yaml"
    text = file.read_text().replace(
        "repository: imagefactory/vllm", "repository: imagefactory/test-elsewhere"
    )
    file.write_text(
        text.replace(
            "    patches: [vllm/cpu-dist-info]",
            "    patches: [vllm/cpu-dist-info]\n    env: {MORE: '" + secrets.token_hex(4) + "'}",
        )
    )
    yield project
    for name in engine.names("imagefactory/test-elsewhere"):
        engine.untag(name)


def test_a_remote_builder_makes_the_image_that_the_engine_makes(
    cpu_image: str, engine: Engine, remote: str, own: Path
) -> None:
    tag = "imagefactory/test-elsewhere:cpu-vllm0.32.0"
    far = factory(
        "build", "--matrix", "--select", "flavor=cpu", "--no-verify", "--builder", remote, cwd=own
    )
    assert far.code == 0, far.err
    there = engine.inspect_image(tag)
    for name in (tag, f"{tag}-torch2.13.0-cpu"):
        engine.untag(name)
    near = factory("build", "--matrix", "--select", "flavor=cpu", "--no-verify", cwd=own)
    assert near.code == 0, near.err
    here = engine.inspect_image(tag)
    assert (there.layers, there.labels, there.env) == (here.layers, here.labels, here.env)
    assert there.digest == here.digest


def test_a_folder_gets_the_image_that_the_engine_makes(
    cpu_image: str, engine: Engine, own: Path, tmp_path: Path
) -> None:
    tag = "imagefactory/test-elsewhere:cpu-vllm0.32.0"
    select, images = ("--select", "flavor=cpu"), str(tmp_path / "images")
    done = factory("build", "--matrix", *select, "--output", images, cwd=own)
    assert done.code == 0, done.err
    assert engine.find_images([tag]) == {}
    again = factory("build", "--matrix", *select, "--output", images, "--json", cwd=own)
    assert [(row["action"], row["result"]) for row in again.json] == [("skip", None)]
    suggested = done.err.rpartition("imagefactory verify ")[2].splitlines()[0].split()
    assert suggested == ["--from", images, *select]
    loaded = factory("verify", *suggested, "--level", "import", cwd=own)
    assert loaded.code == 0, loaded.out + loaded.err
    from_folder = engine.inspect_image(tag).digest
    for name in engine.names("imagefactory/test-elsewhere"):
        engine.untag(name)
    near = factory("build", "--matrix", *select, "--no-verify", cwd=own)
    assert near.code == 0, near.err
    assert engine.inspect_image(tag).digest == from_folder


def test_a_builder_that_there_is_not_is_one_clear_error(engine: Engine) -> None:
    done = factory("build", "--matrix", "--select", "flavor=cpu", "--builder", "nowhere")
    assert done.code == 3
    assert "no-builder" in done.err
    assert "default" in done.err
    assert "Traceback" not in done.err


def test_every_target_writes_a_cache_of_its_own(
    cpu_image: str, engine: Engine, registry: str, own: Path
) -> None:
    repository = f"{registry}/team/cache"
    done = factory(
        "build", "--matrix", "--select", "flavor=cpu", "--no-verify", "--cache", repository, cwd=own
    )
    assert done.code == 0, done.err
    with urllib.request.urlopen(f"http://{registry}/v2/team/cache/tags/list") as answer:
        tags = json.load(answer)["tags"]
    assert sorted(tags) == sorted(
        [
            "cache-builder-bookworm-amd64",
            "cache-cpu-vllm0-32-0-torch2-13-0-cpu-py311-amd64",
        ]
    )
    refused = factory(
        "build", "--matrix", "--select", "flavor=cpu", "--cache", f"{repository}:x", cwd=own
    )
    assert (refused.code, "reference-wrong" in refused.err) == (2, True)
