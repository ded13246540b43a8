"""Lists of what is attached to images that a repository has no more."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.promoting import NOW, PATH, repository
from support.registry import FakeRegistry

from imagefactory.publishing import retention
from imagefactory.publishing.retention import Keep
from imagefactory.system.manifests import Manifest

KEEP = Keep(number=9, days=False)


def test_equal_lists_of_what_is_attached_to_lost_images_go_together_unless_they_have_a_name(
    registry: FakeRegistry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = repository(registry, tmp_path)
    empty = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [],
    }
    lists = [f"sha256-{number * 64}" for number in "12"]
    for tag in lists:
        registry.put_manifest(PATH, tag, empty)
    plan = retention.survey(own, KEEP, NOW, {})
    assert [item.tags for item in plan.items] == [tuple(lists)]
    registry.put_manifest(PATH, "mine", empty)
    assert retention.survey(own, KEEP, NOW, {}).items == ()
    assert retention.remove(own, plan, KEEP, NOW, {}) == []
    assert {(PATH, one) for one in (*lists, "mine")} < registry.manifests.keys()
    del registry.manifests[PATH, "mine"]
    capsys.readouterr()
    assert retention.remove(own, plan, KEEP, NOW, {}) == []
    assert registry.manifests == {}
    assert "stays" not in capsys.readouterr().err


@pytest.mark.parametrize("other", ["0" * 64, ""])
def test_a_list_that_is_also_that_of_an_image_that_is_there_stays(other: str) -> None:
    gone, listed = (
        "sha256-" + "1" * 64,
        Manifest(digest="sha256:list", media_type="", size=1, config=None, layers=(), manifests=()),
    )
    found = {gone: listed, f"sha256-{other}" if other else "mine": listed}
    plan = retention.plan(found, {gone.replace("-", ":")}, KEEP, NOW.date(), {})
    assert plan.items == ()
