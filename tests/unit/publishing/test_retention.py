"""What a registry may lose, and what never goes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.promoting import (
    NOW,
    PATH,
    at,
    attach,
    attached,
    image,
    labels,
    receipt_of,
    repository,
    verified,
)
from support.registry import FakeRegistry, fake_registry

from imagefactory.errors import InputError
from imagefactory.publishing import moving, retention, tags
from imagefactory.publishing.moving import Repository
from imagefactory.publishing.retention import Keep, parse_keep
from imagefactory.system.manifests import Descriptor, Manifest
from imagefactory.system.registry_failures import RegistryError
from imagefactory.system.registry_writes import Attachment

TODAY = date(2026, 11, 22)
TWO = Keep(number=2, days=False)


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with fake_registry() as made:
        yield made


def manifest(name: str, *parts: str, layers: tuple[str, ...] = ()) -> Manifest:
    def rows(digests: tuple[str, ...]) -> tuple[Descriptor, ...]:
        return tuple(Descriptor(digest=one, media_type="", size=10) for one in digests)

    return Manifest(
        digest=f"sha256:{name}",
        media_type="",
        size=1,
        config=None,
        layers=rows(layers),
        manifests=rows(tuple(f"sha256:{part}" for part in parts)),
    )


def name(day: int, key: str, flavor: str = "gb10") -> str:
    return f"0.33.0-cu130-{flavor}-202611{day:02}-{key.ljust(8, '0')}"


def removed(found: dict[str, Manifest], keep: Keep = TWO) -> list[str]:
    return [item.digest[7:] for item in retention.plan(found, set(), keep, TODAY).items]


def test_the_newest_images_of_each_flavor_stay_and_older_ones_go() -> None:
    found = {name(day, f"{day:x}"): manifest(f"gb{day}") for day in (1, 2, 3, 4)}
    found |= {name(day, f"c{day:x}", "cpu"): manifest(f"cpu{day}") for day in (1, 2)}
    assert removed(found) == ["gb1", "gb2"]
    assert removed(found, Keep(number=20, days=True)) == ["gb1", "cpu1"]
    assert removed(found, Keep(number=9, days=False)) == []


def test_images_and_the_records_of_each_moving_tag_are_counted_apart() -> None:
    image = name(1, "a", "record").replace("cu130", "nightly")
    days = {"nightly": (2, 3), "stable": (1, 2)}
    made = {tag: [f"{tag}.2026110{d}T000000Z.{'a' * 12}" for d in days[tag]] for tag in days}
    names = [image, *made["nightly"], *made["stable"]]
    kept = {image, made["nightly"][1], made["stable"][1]}
    assert retention._recent(names, Keep(number=1, days=False), TODAY) == kept


def test_of_one_day_all_images_stay() -> None:
    assert removed({name(3, key): manifest(key) for key in "abcd"}) == []


@pytest.mark.parametrize(
    "more",
    [
        {"nightly": manifest("old")},
        {"gb10-vllm0.33.0": manifest("old")},
        {"v1-by-hand": manifest("old")},
        {"both": manifest("index", "old", "other")},
        {"nightly.20261121T000000Z.0123456789ab": manifest("old")},
        {name(9, "f"): manifest("old")},
    ],
)
def test_what_any_other_name_or_a_kept_index_names_stays(more: dict[str, Manifest]) -> None:
    found = {name(day, f"{day:x}"): manifest(f"new{day}") for day in (7, 8)}
    found[name(1, "1")] = manifest("old")
    assert removed(found) == ["old"]
    assert removed(found | more) == ([] if name(9, "f") not in more else ["new7"])


def test_the_size_is_of_blobs_that_no_kept_image_has() -> None:
    found = {
        name(1, "1"): manifest("a", layers=("base", "x", "y")),
        name(2, "2"): manifest("b", layers=("base", "y")),
        name(8, "8"): manifest("c", layers=("base",)),
        name(9, "9"): manifest("d"),
    }
    items = retention.plan(found, set(), TWO, TODAY).items
    assert [item.size for item in items] == [20, 0]


def test_parts_of_an_index_go_with_it_unless_something_else_names_them() -> None:
    found = {name(day, f"{day:x}"): manifest(f"new{day}") for day in (7, 8)}
    found |= {name(1, "1"): manifest("index", "arm", "amd"), "mine": manifest("amd")}
    (item,) = retention.plan(found, set(), TWO, TODAY).items
    assert (item.parts, item.size) == (("sha256:arm",), None)


NAMES = st.sampled_from(
    [name(day, key, flavor) for day in (1, 9) for key in "ab" for flavor in ("gb10", "cpu")]
    + [f"nightly.202611{day:02}T000000Z.0123456789a{day}" for day in (1, 5, 9)]
    + ["nightly", "mine"]
)


@given(
    found=st.dictionaries(NAMES, st.sampled_from("abcd"), max_size=9),
    keep=st.builds(Keep, number=st.integers(1, 30), days=st.booleans()),
)
def test_nothing_that_a_kept_name_names_ever_goes(found: dict[str, str], keep: Keep) -> None:
    plan = retention.plan(
        {tag: manifest(digest) for tag, digest in found.items()}, set(), keep, TODAY
    )
    going, staying = {i.digest for i in plan.items}, {i.digest for i in plan.kept}
    assert not going & staying
    assert going | staying == {f"sha256:{digest}" for digest in found.values()}
    for tag in ("nightly", "mine"):
        assert f"sha256:{found.get(tag)}" not in going
    images = [tag for tag in found if tags.parse(tag)]
    newest = max(images, key=lambda tag: str(tags.parse(tag).day), default=None)  # type: ignore[union-attr]
    if newest and not keep.days:
        assert f"sha256:{found[newest]}" not in going


@pytest.mark.parametrize("text", ["", "0", "-1", "x", "10 d", "3w", "999999", "1٣"])
def test_what_is_no_number_to_keep_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        parse_keep(text)
    assert parse_keep("90d") == Keep(number=90, days=True)


def filled(registry: FakeRegistry, folder: Path) -> tuple[Repository, list[str]]:
    """A repository with four images and a moving tag that went from the first to the second."""
    own = [labels(f"{n}" * 8, day=f"2026-11-0{n}") for n in (1, 2, 3, 4)]
    digests = [verified(registry, folder, one) for one in own]
    made = repository(registry, folder)
    registry.has_referrers = False
    attached(made, receipt_of(digests[0], own[0]))
    listed = Attachment(kind="sbom", media_type="a/b", content=b"{}", annotations={})
    assert attach(made, digests[0], listed)
    for hours, digest in enumerate(digests[:2]):
        moving.promote(made, digest, "nightly", at(24 * hours))
    return made, digests


def subjects(registry: FakeRegistry) -> set[str]:
    """The images that something is attached to, or that have a list of it."""
    rows = [json.loads(data) for data in registry.manifests.values()]
    names = [name for _, name in registry.manifests if name.startswith("sha256-")]
    listed = {name.replace("-", ":", 1) for name in names}
    return listed | {row["subject"]["digest"] for row in rows if "subject" in row}


def test_images_go_with_what_is_attached_to_them_and_the_history_shows_it(
    registry: FakeRegistry, tmp_path: Path
) -> None:
    own, digests = filled(registry, tmp_path)
    keep = Keep(number=1, days=False)
    plan = retention.survey(own, keep, at(48))
    assert [item.digest for item in plan.items] == [digests[0], digests[2]]
    assert plan.items[0].attached.startswith("sha256-")
    assert {i.digest: i.why for i in plan.kept}[digests[1]] == "the tag nightly names it"
    assert retention.remove(own, plan, keep, at(48)) == []
    assert {*registry.tags(PATH).values()} == {digests[1], digests[3]}
    assert subjects(registry) == {digests[1]}
    assert [row.digest for row in moving.history(own, "nightly")] == [digests[1]]
    assert retention.survey(own, keep, at(48)).items == ()


def test_what_gets_a_name_between_plan_and_removal_stays(
    registry: FakeRegistry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own, digests = filled(registry, tmp_path)
    keep = Keep(number=1, days=False)
    plan = retention.survey(own, keep, at(48))
    moving.promote(own, digests[2], "nightly", at(40))
    registry.manifests[PATH, "mine"] = registry.manifests[PATH, digests[0]]
    assert retention.remove(own, plan, keep, at(48)) == []
    assert {digests[0], digests[2]} <= {*registry.tags(PATH).values()}
    assert capsys.readouterr().err.count("its names have changed") == 2


def test_a_list_of_what_is_attached_to_a_lost_image_goes(
    registry: FakeRegistry, tmp_path: Path
) -> None:
    own, digests = filled(registry, tmp_path)
    for key in [key for key, data in registry.manifests.items() if key[1] == digests[0]]:
        data = registry.manifests[key]
        for other in [k for k, d in registry.manifests.items() if d == data]:
            del registry.manifests[other]
    keep = Keep(number=9, days=False)
    (item,) = retention.survey(own, keep, NOW).items
    assert (item.why, len(item.parts)) == ("attached to an image that is gone", 2)
    assert retention.remove(own, retention.survey(own, keep, NOW), keep, NOW) == []
    assert subjects(registry) == {digests[1]}


def test_a_registry_that_removes_nothing_says_so_once(
    registry: FakeRegistry, tmp_path: Path
) -> None:
    own, digests = filled(registry, tmp_path)
    registry.deletes = False
    keep = Keep(number=1, days=False)
    with pytest.raises(RegistryError) as caught:
        retention.remove(own, retention.survey(own, keep, NOW), keep, NOW)
    (problem,) = caught.value.problems
    assert problem.code == "registry-cannot"
    assert "REGISTRY_STORAGE_DELETE_ENABLED" in problem.fix
    assert {*digests} <= {*registry.tags(PATH).values()}


def test_an_image_without_labels_is_left_to_its_owner(
    registry: FakeRegistry, tmp_path: Path
) -> None:
    image(registry, labels("aaaaaaaa", day="2026-01-01"))
    theirs = registry.put(PATH, "theirs", {})
    own = replace(repository(registry, tmp_path), moving=())
    plan = retention.survey(own, Keep(number=1, days=True), NOW)
    assert theirs in {item.digest for item in plan.kept}
    assert len(plan.items) == 1
