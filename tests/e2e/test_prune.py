"""Making room on a real engine: the plan first, and nothing of anybody else's."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.e2e import factory

from imagefactory.system.engine import Engine

pytestmark = pytest.mark.e2e

#: Of its own: other tests leave images with our label in theirs until the end.
REPOSITORY = "imagefactory/test-prune"
LABELS = "LABEL io.imagefactory.build-key={key} io.imagefactory.cell=x\n"


def make(engine: Engine, folder: Path, tag: str, key: str | None) -> str:
    (folder / "Dockerfile").write_text(
        "FROM scratch\nCOPY Dockerfile /\n" + (LABELS.format(key=key) if key else "")
    )
    engine.build(folder, tag=tag)
    return tag


@pytest.fixture
def own(project: Path) -> Path:
    """A project whose images have a repository of their own."""
    file = project / "matrix.yaml"
    file.write_text(
        file.read_text().replace("repository: imagefactory/vllm", f"repository: {REPOSITORY}")
    )
    return project


def test_the_plan_is_shown_first_and_only_superseded_images_of_ours_go(
    own: Path, engine: Engine, tmp_path: Path
) -> None:
    folder = tmp_path / "image"
    folder.mkdir()
    orphan = make(engine, folder, f"{REPOSITORY}:orphan", "1")
    used = make(engine, folder, f"{REPOSITORY}:used", "2")
    byhand = make(engine, folder, f"{REPOSITORY}:byhand", None)
    derived = make(engine, folder, "imagefactory/test-somebody:prod", "3")
    environ = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    (context := tmp_path / "cache/imagefactory/build/gone-cell").mkdir(parents=True)
    (context / "Dockerfile").write_text("x")
    try:
        with engine.created(used):
            asked = factory("prune", cwd=own, environ=environ)
            assert (asked.code, "--yes" in asked.err) == (0, True)
            assert orphan in asked.out
            assert set(engine.find_images([orphan, used, byhand, derived])) == {
                orphan,
                used,
                byhand,
                derived,
            }
            done = factory("prune", "--yes", "--json", cwd=own, environ=environ)
            assert done.code == 0, done.err
            assert {row["name"] for row in done.json["items"]} == {orphan, str(context)}
            assert {row["name"]: row["why"] for row in done.json["kept"]} == {
                used: "a container uses it"
            }
            there = set(engine.find_images([orphan, used, byhand, derived]))
            assert there == {used, byhand, derived}
            assert not context.exists()
            again = factory("prune", "--yes", cwd=own, environ=environ)
            assert (again.code, "nothing to remove" in again.err) == (0, True)
    finally:
        for name in (used, byhand, derived):
            engine.untag(name)


def test_the_build_cache_is_listed_record_by_record(engine: Engine, cpu_image: str) -> None:
    records = engine.cache_records()
    assert any("python3 -m factory.patched" in record.description for record in records)
    assert all(record.id and record.size >= 0 for record in records)
