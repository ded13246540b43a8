"""What a registry may lose, and what never goes."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date
from pathlib import Path
from types import SimpleNamespace

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
from support.registry import FakeRegistry

from imagefactory.errors import InputError, Problem
from imagefactory.publishing import moving, retention, tags
from imagefactory.publishing.moving import Repository
from imagefactory.publishing.retention import Item, Keep, parse_keep
from imagefactory.system import registry_writes
from imagefactory.system.manifests import Descriptor, Manifest
from imagefactory.system.registry import Registries
from imagefactory.system.registry_failures import RegistryError
from imagefactory.system.registry_writes import Attachment

TODAY = date(2026, 11, 22)
TWO = Keep(number=2, days=False)


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
    return [item.digest[7:] for item in retention.plan(found, set(), keep, TODAY, {}).items]


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


@pytest.mark.parametrize(
    ("pin", "index"),
    [
        ("sha256:old", False),
        (name(1, "1"), False),
        ("nightly.20261101T000000Z.0123456789ab", False),
        ("sha256:config", False),  # as an engine without containerd names it
        ("sha256:arm", True),
    ],
)
def test_what_a_file_pins_stays_whatever_its_age(pin: str, index: bool) -> None:
    config = Descriptor(digest="sha256:config", media_type="", size=3)
    old = manifest("old", *(("arm", "amd") if index else ()))
    found = {name(day, f"{day:x}"): manifest(f"new{day}") for day in (7, 8)}
    found |= {name(1, "1"): old if index else replace(old, config=config)}
    found |= {"nightly.20261101T000000Z.0123456789ab": found[name(1, "1")]}
    found |= {f"nightly.202611{day:02}T000000Z.0123456789ab": manifest("new8") for day in (7, 8)}
    assert removed(found) == ["old"]
    plan = retention.plan(found, set(), TWO, TODAY, {pin: "compose.yaml"})
    assert plan.items == ()
    assert {i.digest: i.why for i in plan.kept}["sha256:old"] == "compose.yaml pins it"


def test_the_size_is_of_blobs_that_no_kept_image_has() -> None:
    found = {
        name(1, "1"): manifest("a", layers=("base", "x", "y")),
        name(2, "2"): manifest("b", layers=("base", "y")),
        name(8, "8"): manifest("c", layers=("base",)),
        name(9, "9"): manifest("d"),
    }
    items = retention.plan(found, set(), TWO, TODAY, {}).items
    assert [item.size for item in items] == [20, 0]


def test_parts_of_an_index_go_with_it_unless_something_else_names_them() -> None:
    found = {name(day, f"{day:x}"): manifest(f"new{day}") for day in (7, 8)}
    found |= {name(1, "1"): manifest("index", "arm", "amd"), "mine": manifest("amd")}
    (item,) = retention.plan(found, set(), TWO, TODAY, {}).items
    assert (item.parts, item.size) == (("sha256:arm",), None)


def test_an_index_has_no_size_and_counts_the_configuration_of_an_image_once() -> None:
    config = Descriptor(digest="config", media_type="", size=3)
    found = {
        name(1, "1"): replace(manifest("a", layers=("x",)), config=config),
        name(2, "2"): replace(manifest("b", layers=("x", "y")), config=config),
        name(9, "9"): manifest("d"),
        name(8, "8"): manifest("c"),
    }
    items = retention.plan(found, set(), TWO, TODAY, {}).items
    assert [(item.size, item.attached) for item in items] == [(13, ""), (10, "")]


def test_each_image_that_stays_says_why_with_all_of_its_names() -> None:
    old, recent, listed = name(1, "1"), name(9, "9"), name(2, "2")
    found = {
        old: manifest("a"),
        "zz": manifest("a"),
        "mine": manifest("b"),
        "also": manifest("b"),
        recent: manifest("c"),
        name(8, "8"): manifest("c2"),
        listed: manifest("part"),
        "index": manifest("index", "part"),
        "sha256-" + "0" * 64: manifest("list"),
        "sha256-" + "1" * 64: manifest("other", "lone", "a"),
    }
    gone = {"sha256:" + "1" * 64}
    plan = retention.plan(found, gone, TWO, TODAY, {})
    kept = {item.digest[7:]: (item.tags, item.why) for item in plan.kept}
    assert kept == {
        "a": ((old, "zz"), "the tag zz names it"),
        "b": (("also", "mine"), "the tag mine names it"),
        "c": ((recent,), f"{recent} is recent"),
        "c2": ((name(8, "8"),), f"{name(8, '8')} is recent"),
        "part": ((listed,), "the index index lists it"),
        "index": (("index",), "the tag index names it"),
    }
    (item,) = plan.items
    assert (item.digest, item.tags) == ("sha256:other", ("sha256-" + "1" * 64,))
    assert item.parts == ("sha256:lone",)
    assert item.as_dict()["why"] == "attached to an image that is gone"


@pytest.mark.parametrize(
    ("keep", "kept"),
    [
        (Keep(number=1, days=False), "d"),
        (Keep(number=2, days=False), "bcd"),
        (Keep(number=3, days=False), "bcd"),
        (Keep(number=4, days=False), "abcd"),
        (Keep(number=1, days=True), "d"),
        (Keep(number=2, days=True), "bcd"),
        (Keep(number=20, days=True), "bcd"),
        (Keep(number=21, days=True), "abcd"),
    ],
)
def test_the_oldest_day_that_is_kept_is_kept_whole(keep: Keep, kept: str) -> None:
    days = (("a", 1), ("b", 20), ("c", 20), ("d", 21))
    items = [(date(2026, 11, day), one) for one, day in days]
    assert keep.of(items, TODAY) == {*kept}
    assert keep.of([], TODAY) == set()


def test_what_is_attached_to_an_image_goes_after_it_unless_it_stays_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    deleted = list[tuple[str, str]]()
    own = repository(FakeRegistry(), tmp_path)
    digests = [f"sha256:{letter * 64}" for letter in "abcdef"]
    image, part, receipt, kept, listed, _ = digests
    answers = SimpleNamespace(
        referrers=lambda _, digest: [
            Descriptor(digest=one, media_type="", size=1)
            for one in (receipt, kept)
            if digest == image
        ],
        manifest=lambda name: manifest(listed[7:]) if name == f"{own.name}:list" else None,
    )
    monkeypatch.setattr(
        registry_writes, "delete", lambda _, name, digest: deleted.append((name, digest))
    )
    item = Item(digest=image, tags=(), why="", parts=(part, "no digest"), attached="list")
    retention._remove(replace(own, registries=answers), item, {kept})  # type: ignore[arg-type]
    assert deleted == [(own.name, one) for one in (image, part, receipt, listed)]
    deleted.clear()
    lone = replace(item, attached="", parts=())
    retention._remove(replace(own, registries=answers), lone, {kept})  # type: ignore[arg-type]
    assert deleted == [(own.name, one) for one in (image, receipt)]


def test_a_problem_with_one_image_is_told_and_the_others_go(
    registry: FakeRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for day in (1, 2, 3):
        image(registry, labels(f"{day}" * 8, day=f"2026-11-0{day}"))
    own, keep = repository(registry, tmp_path), Keep(number=1, days=False)
    plan, delete = retention.survey(own, keep, NOW, {}), registry_writes.delete

    def first_fails(registries: Registries, name: str, digest: str) -> None:
        if digest == plan.items[0].digest:
            problem = Problem(code="registry-down", what="no", fix="wait")
            raise RegistryError(problem)
        delete(registries, name, digest)

    monkeypatch.setattr(registry_writes, "delete", first_fails)
    assert [one.code for one in retention.remove(own, plan, keep, NOW, {})] == ["registry-down"]
    left = retention.survey(own, keep, NOW, {})
    assert [item.digest for item in left.items] == [plan.items[0].digest]


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
        {tag: manifest(digest) for tag, digest in found.items()}, set(), keep, TODAY, {}
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
    plan = retention.survey(own, keep, at(48), {})
    assert [item.digest for item in plan.items] == [digests[0], digests[2]]
    assert plan.items[0].attached.startswith("sha256-")
    assert {i.digest: i.why for i in plan.kept}[digests[1]] == "the tag nightly names it"
    assert retention.remove(own, plan, keep, at(48), {}) == []
    assert {*registry.tags(PATH).values()} == {digests[1], digests[3]}
    assert subjects(registry) == {digests[1]}
    assert [row.digest for row in moving.history(own, "nightly")] == [digests[1]]
    assert retention.survey(own, keep, at(48), {}).items == ()


def test_what_gets_a_name_between_plan_and_removal_stays(
    registry: FakeRegistry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own, digests = filled(registry, tmp_path)
    keep = Keep(number=1, days=False)
    plan = retention.survey(own, keep, at(48), {})
    moving.promote(own, digests[2], "nightly", at(40))
    registry.manifests[PATH, "mine"] = registry.manifests[PATH, digests[0]]
    assert retention.remove(own, plan, keep, at(48), {}) == []
    assert {digests[0], digests[2]} <= {*registry.tags(PATH).values()}
    assert capsys.readouterr().err.count("its names have changed") == 2


def test_what_a_file_pins_between_plan_and_removal_stays(
    registry: FakeRegistry, tmp_path: Path
) -> None:
    own, digests = filled(registry, tmp_path)
    keep = Keep(number=1, days=False)
    plan = retention.survey(own, keep, at(48), {})
    assert retention.remove(own, plan, keep, at(48), {digests[0]: "compose.yaml"}) == []
    assert digests[0] in registry.tags(PATH).values()
    assert digests[2] not in registry.tags(PATH).values()


def test_a_list_of_what_is_attached_to_a_lost_image_goes(
    registry: FakeRegistry, tmp_path: Path
) -> None:
    own, digests = filled(registry, tmp_path)
    for key in [key for key, data in registry.manifests.items() if key[1] == digests[0]]:
        data = registry.manifests[key]
        for other in [k for k, d in registry.manifests.items() if d == data]:
            del registry.manifests[other]
    keep = Keep(number=9, days=False)
    (item,) = retention.survey(own, keep, NOW, {}).items
    assert (item.why, len(item.parts)) == ("attached to an image that is gone", 2)
    assert retention.remove(own, retention.survey(own, keep, NOW, {}), keep, NOW, {}) == []
    assert subjects(registry) == {digests[1]}


def test_a_registry_that_removes_nothing_says_so_once(
    registry: FakeRegistry, tmp_path: Path
) -> None:
    own, digests = filled(registry, tmp_path)
    registry.deletes = False
    keep = Keep(number=1, days=False)
    with pytest.raises(RegistryError) as caught:
        retention.remove(own, retention.survey(own, keep, NOW, {}), keep, NOW, {})
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
    plan = retention.survey(own, Keep(number=1, days=True), NOW, {})
    assert theirs in {item.digest for item in plan.kept}
    assert len(plan.items) == 1
