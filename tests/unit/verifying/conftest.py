"""Engines with one image each, and the machine on which it was built."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.verify_fakes import CPU, CUDA
from support.verify_station import StationEngine, engine_for

from imagefactory.building import records
from imagefactory.settings import Settings, from_environment


@pytest.fixture
def cpu() -> StationEngine:
    return engine_for(CPU)


@pytest.fixture
def cuda() -> StationEngine:
    return engine_for(CUDA)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Of a machine on which the image was built."""
    made = from_environment({"HOME": str(tmp_path)})
    records.add(made.state / records.FOLDER, "key", ["sha256:" + "ab" * 32])
    return made
