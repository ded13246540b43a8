"""Inspecting an image: what cannot be read is unknown, and an engine that fails is an error."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.docker import FakeDocker
from support.verify_fakes import image_info

from imagefactory.commands import inspect
from imagefactory.errors import SetupError, fail
from imagefactory.inspecting import inspecting
from imagefactory.system.engine import Engine, ImageInfo


class OneImage(Engine):
    """Has an image of ours with the manifest ``text``."""

    def __init__(self, text: str | None, *, broken: bool = False) -> None:
        super().__init__()
        self.text, self.broken = text, broken

    def inspect_image(self, ref: str) -> ImageInfo:
        return image_info(ref=ref, labels={"io.imagefactory.build-key": "k"})

    def read_file(self, image: str, path: str) -> str | None:  # noqa: ARG002
        if self.broken:
            raise fail(SetupError, "engine-failed", "no space left on device")
        return self.text

    def history(self, ref: str) -> list[tuple[str, int]]:  # noqa: ARG002
        return []


@pytest.mark.parametrize("text", [None, "", "{", "[1]", "[" * 100_000])
def test_a_manifest_that_cannot_be_read_makes_contents_unknown(
    text: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    found = inspecting.look(OneImage(text), "made:1")
    assert "manifest.json that can be read" in found.unknown
    inspect._facts(found, None)
    shown = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert "unknown" in shown["patches"]
    assert "unknown" in shown["packages"]


def test_a_manifest_without_wheels_is_known_to_have_none() -> None:
    assert inspecting.look(OneImage('{"wheels": []}'), "made:1").unknown == ""


def test_an_engine_that_fails_is_an_error() -> None:
    with pytest.raises(SetupError, match="no space left"):
        inspecting.look(OneImage(None, broken=True), "made:1")


@pytest.mark.programs
def test_what_docker_fails_to_copy_is_an_error(tmp_path: Path) -> None:
    docker = FakeDocker(tmp_path)
    docker.answer("create", err="Error response: no space left on device", code=1)
    docker.answer("container rm")
    with pytest.raises(SetupError, match="no space left"):
        Engine(binary=str(docker.program)).read_file("made:1", "/x")
