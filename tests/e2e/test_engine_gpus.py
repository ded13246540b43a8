"""GPUs for containers, on a real engine that has none."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagefactory.errors import SetupError
from imagefactory.system.engine import Engine
from imagefactory.verifying.gpu import running

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has a GPU"),
]


def test_an_engine_without_a_gpu_is_told_apart_from_an_image_that_fails(
    cpu_image: str, engine: Engine
) -> None:
    image = engine.inspect_image(cpu_image)
    with pytest.raises(SetupError) as caught:
        running.check(engine, image)
    (problem,) = caught.value.problems
    assert problem.code == "gpu-missing"
    assert "install the NVIDIA container toolkit" in problem.fix
    assert image.digest not in engine.used_images()
