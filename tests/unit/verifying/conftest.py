"""Engines with one image each, and the machine on which it was built."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.verify_fakes import CPU, CUDA
from support.verify_station import StationEngine, engine_for

from imagefactory.building import records
from imagefactory.settings import Settings, from_environment


@pytest.fixture
def cpu() -> Iterator[StationEngine]:
    engine = engine_for(CPU)
    yield engine
    engine.close()


@pytest.fixture
def cuda() -> Iterator[StationEngine]:
    engine = engine_for(CUDA)
    yield engine
    engine.close()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Of a machine on which the image was built."""
    made = from_environment({"HOME": str(tmp_path)})
    records.add(made.state / records.FOLDER, "key", ["sha256:" + "ab" * 32])
    return made
