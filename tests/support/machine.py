"""Settings for tests."""

from __future__ import annotations

from pathlib import Path

from imagefactory.settings import Settings

DOWN = "http://127.0.0.1:9/simple"


def settings(tmp_path: Path, *indexes: str, links: tuple[Path, ...] = ()) -> Settings:
    return Settings(
        state=tmp_path / "state",
        cache=tmp_path / "cache",
        indexes=indexes,
        find_links=links,
        ca_bundle=None,
    )
