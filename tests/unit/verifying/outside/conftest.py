"""Images to spoil."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import pytest
from support.whole_images import WholeImage

from imagefactory.verifying.outside import patched
from imagefactory.verifying.outside.inventory import Wheels


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> WholeImage:
    return WholeImage(tmp_path_factory.mktemp("image"))


@pytest.fixture
def image(master: WholeImage, monkeypatch: pytest.MonkeyPatch) -> WholeImage:
    """An image to spoil, whose wheels and patch stay as they are."""
    monkeypatch.setattr(patched, "apply", lambda *args: _patched(master, args[-1]))
    return master.copy()


@lru_cache
def _patched(master: WholeImage, obsolete: frozenset[str]) -> patched.Patched:
    plan, source = master.plan, Wheels(master.settings)
    found = source.inventories(plan.resolution.wheels)
    vllm = [wheel for wheel in plan.resolution.wheels if wheel.name == "vllm"]
    return APPLY(plan.series, None, vllm, found, source, obsolete)


APPLY = patched.apply


@pytest.fixture
def own(tmp_path: Path) -> WholeImage:
    """An image whose wheels and patch may be changed, too."""
    return WholeImage(tmp_path)
