"""What tests of reports share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiled templates: to compile them takes longer than all tests."""
    return tmp_path_factory.mktemp("cache")
