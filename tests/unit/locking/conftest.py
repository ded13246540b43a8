"""For all tests of the lock."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_uv_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """uv caches pages by URL, and an index of another test may have had the same port."""
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
