"""Settings for tests."""

from __future__ import annotations

from pathlib import Path

from imagefactory.settings import Settings, split_accounts

DOWN = "http://127.0.0.1:9/simple"


def settings(tmp_path: Path, *indexes: str, links: tuple[Path, ...] = ()) -> Settings:
    urls, accounts = split_accounts(indexes, {})
    return Settings(
        state=tmp_path / "state",
        cache=tmp_path / "cache",
        indexes=urls,
        accounts=accounts,
        find_links=links,
        ca_bundle=None,
    )
