"""For all tests of the lock."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def own_cache(own_uv_cache: None) -> None:
    """No test of the lock knows the pages of another test's index."""
