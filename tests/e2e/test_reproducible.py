"""The same inputs give the same image digest: built twice from nothing, in two folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.e2e import factory

from imagefactory.system.engine import Engine

pytestmark = pytest.mark.e2e


def built(engine: Engine, folder: Path, tag: str) -> str:
    """The digest of the cpu cell.

    Built without any cache from what ``render`` writes into ``folder``.
    """
    assert factory("render", "--select", "flavor=cpu", "--out", str(folder)).code == 0
    path = folder / "docker-bake.json"
    bake = json.loads(path.read_text())
    for target in bake["target"].values():
        if "tags" in target:
            target["tags"] = [tag]
    path.write_text(json.dumps(bake))
    lines: list[str] = []
    code = engine.bake(path, [], on_line=lines.append, progress="plain", cached=False)
    assert code == 0, "".join(lines)[-2000:]
    return engine.inspect_image(tag).digest


def test_two_builds_without_cache_in_two_folders_give_one_digest(
    cpu_image: str, engine: Engine, tmp_path: Path
) -> None:
    first = built(engine, tmp_path / "here", "imagefactory/test:first")
    second = built(engine, tmp_path / "elsewhere" / "deeper", "imagefactory/test:second")
    assert first == second
