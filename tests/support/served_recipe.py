"""A recipe, an image and an engine to start it on, for tests of what is started and exported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from imagefactory import opening
from imagefactory.planning import vllm_settings
from imagefactory.planning.vllm_settings import VllmSettings
from imagefactory.system.engine import ImageInfo

RECIPE = """\
summary: mine
model: org/mine
weights: bf16
hardware: [gb10, cpu]
vllm: ">=0.22"
options: {gpu-memory-utilization: "0.5", max-num-seqs: 4}
env: {A: b c}
"""
GB10 = "imagefactory/vllm:gb10-vllm0.33.0-torch2.14.0-cu130"
DIGEST = f"sha256:{'1' * 64}"
KNOWN = VllmSettings(
    variables=frozenset(), options=frozenset({"--gpu-memory-utilization", "--max-num-seqs"})
)
INFO = ImageInfo(
    ref=GB10,
    digest=DIGEST,
    layers=(),
    platform="linux/arm64",
    labels={"io.imagefactory.pin.vllm": "0.33.0"},
    env={},
    size=1,
)


@dataclass
class FakeEngine:
    """An engine with some images, which notes what it is asked to start."""

    images: dict[str, ImageInfo]
    started: list[Sequence[str]]

    def find_images(self, refs: Sequence[str]) -> dict[str, ImageInfo]:
        return {ref: self.images[ref] for ref in refs if ref in self.images}

    def start_service(self, arguments: Sequence[str]) -> str:
        self.started.append(arguments)
        return "0123"


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(RECIPE)
    return path


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    fake = FakeEngine(images={GB10: INFO}, started=[])
    monkeypatch.setattr(opening, "connect", lambda _: fake)
    monkeypatch.setattr(opening, "connect_if_any", lambda _: fake)
    monkeypatch.setattr(vllm_settings, "of_cell", lambda *_: KNOWN)
    return fake
