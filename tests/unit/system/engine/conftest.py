"""An engine whose docker says what a test wants."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.docker import FakeDocker

from imagefactory.system.engine import Engine


@pytest.fixture
def docker(tmp_path: Path) -> FakeDocker:
    return FakeDocker(tmp_path)


@pytest.fixture
def engine(docker: FakeDocker) -> Engine:
    return Engine(binary=str(docker.program))
